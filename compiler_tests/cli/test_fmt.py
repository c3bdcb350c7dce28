"""`forgec fmt` as a person, an editor and CI meet it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UGLY = "forge 1\nparam eps:float=0.2   # clip\nparam  group : int=8\n\n\n\nrequire (group>=2)\n"
NICE = (
    "forge 1\n"
    "param eps   : float = 0.2                        # clip\n"
    "param group : int   = 8\n"
    "\n"
    "require group >= 2\n"
)


def fmt(*words, text=None, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", "fmt", *map(str, words)],
        input=text, capture_output=True, cwd=cwd, check=False,
    )  # fmt: skip


@pytest.fixture
def ugly(tmp_path):
    path = tmp_path / "a.forge"
    path.write_text(UGLY)
    return path


def test_a_file_is_rewritten(ugly):
    done = fmt(ugly)
    assert (done.returncode, ugly.read_text()) == (0, NICE)


def test_the_command_says_what_it_did(ugly):
    assert fmt("a.forge", cwd=ugly.parent).stderr == b"formatted a.forge\n1 formatted\n"


def test_a_formatted_file_is_not_touched(ugly):
    ugly.write_text(NICE)
    before = ugly.stat().st_mtime_ns
    assert fmt(ugly).stderr == b"1 unchanged\n"
    assert ugly.stat().st_mtime_ns == before


def test_check_names_files_and_writes_nothing(ugly):
    done = fmt("a.forge", "--check", cwd=ugly.parent)
    assert (done.returncode, done.stdout) == (1, b"a.forge is not formatted\n")
    assert ugly.read_text() == UGLY


def test_check_is_silent_about_formatted_files(ugly):
    ugly.write_text(NICE)
    done = fmt(ugly, "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_diff_shows_lines_and_writes_nothing(ugly):
    done = fmt("a.forge", "--diff", cwd=ugly.parent)
    assert done.returncode == 1
    assert b"-require (group>=2)\n+require group >= 2\n" in done.stdout
    assert ugly.read_text() == UGLY


def test_folders_are_searched(ugly):
    assert fmt(ugly.parent).returncode == 0
    assert ugly.read_text() == NICE


def test_standard_input_goes_to_standard_output():
    done = fmt("--stdin", text=UGLY.encode())
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, NICE, b"")


def test_crlf_and_byte_order_mark_go():
    data = b"\xef\xbb\xbf" + UGLY.replace("\n", "\r\n").encode()
    assert fmt("--stdin", text=data).stdout.decode() == NICE


def test_a_file_with_crlf_only_is_rewritten(ugly):
    ugly.write_bytes(NICE.replace("\n", "\r\n").encode())
    assert fmt(ugly, "--check").returncode == 1
    fmt(ugly)
    assert ugly.read_bytes() == NICE.encode()


def test_a_file_with_errors_is_left_alone(ugly):
    ugly.write_text("param eps : float =\nparam  a:int=1\n")
    done = fmt(ugly)
    assert done.returncode == 1
    assert b"error[S005]" in done.stderr
    assert ugly.read_text() == "param eps : float =\nparam  a:int=1\n"


def test_errors_of_standard_input_leave_standard_output_empty():
    done = fmt("--stdin", text=b"param eps : float =\n")
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_missing_file_is_bad_usage(tmp_path):
    assert fmt(tmp_path / "no.forge").returncode == 2


@pytest.mark.parametrize("words", [(), ("a.forge", "--stdin"), ("--wide", "a.forge")])
def test_bad_usage(words):
    assert fmt(*words).returncode == 2
