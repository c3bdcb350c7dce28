"""Overrides and slips on the command line, alike in every command that compiles a file."""

import shutil
from pathlib import Path

import pytest
from forge_commands import CliRunner

from forgedsl.cli.app import app
from forgedsl.cli.commands import COMMANDS
from forgedsl.cli.options import options_of
from forgedsl.cli.overrides import Syntax, with_sets

PIPELINES = Path(__file__).parents[2] / "pipelines"
SETTING = [name for name, _, _ in COMMANDS if any("--set" in o.names for o in options_of(name))]
FORMS = [
    (["x.forge"], []),
    (["x.forge", "--set", "trainer.procs=2"], None),
    (["x.forge", "trainer.procs=2"], ["trainer.procs=2"]),
    (["--trainer.procs", "2", "x.forge"], ["trainer.procs=2"]),
    (["x.forge", "--trainer.procs=2", "--max_new", "8"], ["trainer.procs=2", "max_new=8"]),
    (["x.forge", "--optimizer.lr", "-1e-3"], ["optimizer.lr=-1e-3"]),
    (["x.forge", "name=a=b"], ["name=a=b"]),
]
OPTIONS = {
    "--set": True, "--set-file": True, "--profile": True, "--out": True, "-o": True,
    "--stub": False, "--seed": True, "--help": False,
}  # fmt: skip


def syntax(num_words: int | None = 1) -> Syntax:
    return Syntax(command="plan", options=OPTIONS, num_words=num_words)


@pytest.mark.parametrize(("arguments", "overrides"), FORMS)
def test_overrides_may_be_written_in_three_ways(arguments, overrides) -> None:
    expected = arguments if overrides is None else ["x.forge", *(f"--set={o}" for o in overrides)]
    assert sorted(with_sets(arguments, syntax())) == sorted(expected)


def test_overrides_keep_their_order() -> None:
    found = with_sets(["a=1", "--set", "a=2", "--a", "3", "x.forge", "a=4"], syntax())
    assert found == ["--set=a=1", "--set", "a=2", "--set=a=3", "x.forge", "--set=a=4"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["x.forge", "--profile", "cpu", "-o", "out", "--stub"],
        ["x.forge", "--profile=cpu", "-oout"],
        ["runs/lr=1/x.forge", "--set-file", "mine.toml"],
        ["--", "--odd-name.forge"],
    ],
)
def test_options_and_files_are_left_as_they_are(arguments) -> None:
    assert with_sets(arguments, syntax()) == arguments


def test_a_file_with_an_equals_sign_in_its_name_is_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1.forge").write_text("forge 1\n")
    assert with_sets(["lr=1.forge"], syntax()) == ["lr=1.forge"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x.forge", "--profil", "cpu"], "no option `--profil`; did you mean `--profile`?"),
        (["x.forge", "--profil=cpu"], "no option `--profil`; did you mean `--profile`?"),
        (["x.forge", "--best", "9"], "no option `--best`; it is an option of `forgec export`"),
        (["--stubb", "x.forge"], "no option `--stubb`; did you mean `--stub`?"),
        (["x.forge", "-x"], "no option `-x`; see `forgec plan --help`"),
        (["x.forge", "-lr", "1e-5"], "no option `-lr`; did you mean `lr=1e-5`?"),
        (["x.forge", "-a.lr=1e-5"], "no option `-a.lr=1e-5`; did you mean `a.lr=1e-5`?"),
        (["x.forge", "-profile", "cpu"], "no option `-profile`; did you mean `--profile`?"),
        (["x.forge", "--foo"], "no option `--foo`; as an override, write --foo=VALUE"),
        (["x.forge", "--a.b", "--stub"], "--a.b needs a value, but `--stub` is an option"),
        (["x.forge", "--profile", "--stub"], "--profile needs a value, but `--stub` is an option"),
        (["x.forge", "--set"], "--set needs a value"),
        (["--trainer.procs", "x.forge"], "--trainer.procs needs a value, but `x.forge` is a file"),
        (["a.forge", "b.forge"], "only one file can be given, got a.forge and b.forge"),
        (["x.forge", "cpu"], "unexpected argument `cpu`; an override is written a.b=v, a profile "
                             "--profile cpu"),
        (["x.forge", "a.b", "=", "2"], "unexpected argument `a.b`; an override is written a.b=v, "
                                       "without spaces"),
    ],
)  # fmt: skip
def test_misuse_is_said_in_one_line_and_exits_with_2(arguments, said, capsys) -> None:
    with pytest.raises(SystemExit) as exit_:
        with_sets(arguments, syntax())
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"forgec plan: {said}")


def test_a_parameter_that_is_spelt_like_an_option_can_be_set(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.forge").write_text("forge 1\nparam seeds : int = 3\n")
    assert with_sets(["x.forge", "--seeds", "4"], syntax()) == ["x.forge", "--set=seeds=4"]


# ---- through the commands themselves


@pytest.fixture
def forgec(tmp_path, monkeypatch):
    """Run a command in a folder with x.forge, whose rows lie beside it."""
    shutil.copy(PIPELINES / "sft_math.forge", tmp_path / "x.forge")
    for name in ("data", "models", "tokenizers"):
        (tmp_path / name).symlink_to(PIPELINES / name)
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, words)


def test_every_command_that_compiles_a_file_takes_overrides() -> None:
    assert set(SETTING) == {
        "doctor", "lint", "plan", "build", "diff", "lock", "explain", "graph", "sim", "run",
        "sweep", "whatif", "certify",
    }  # fmt: skip


@pytest.mark.parametrize("command", SETTING)
def test_a_misspelt_option_is_no_override(forgec, command: str) -> None:
    done = forgec(command, "x.forge", "--profil", "cpu")
    assert done.exit_code == 2
    said = f"forgec {command}: no option `--profil`; did you mean `--profile`? "
    assert done.stderr == f"{said}(x.forge declares no `profil` either)\n"


@pytest.mark.parametrize(
    "words",
    [
        ("lint", "x.forge"),
        ("plan", "x.forge"),
        ("build", "x.forge", "-o", "out"),
        ("diff", "x.forge", "x.forge"),
        ("lock", "x.forge"),
        ("explain", "trainer", "x.forge"),
        ("graph", "x.forge"),
        ("sim", "x.forge"),
        ("run", "x.forge"),
    ],
)
def test_an_override_of_nothing_is_a_diagnostic_with_a_suggestion(forgec, words) -> None:
    done = forgec(*words, "--schedule.stps", "3")
    assert done.exit_code == (2 if words[0] == "diff" else 1)
    assert "F103" in done.output
    assert "<command line: schedule.stps>:1:10" in done.output
    assert "did you mean `steps`?" in done.output


def test_a_diff_of_a_file_with_itself_shows_what_overrides_change(forgec) -> None:
    done = forgec("diff", "x.forge", "x.forge", "--schedule.steps", "3", "--format", "json")
    assert '"path": "schedule.steps"' in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("explain", "x.forge"), "the file comes second: `forgec explain NAME x.forge`"),
        (("explain", "x.forge", "trainer"), "the file comes second: `forgec explain trainer x."),
        (
            ("explain", "L405", "x.forge"),
            ("`L405` is a code, which does not depend on a file; leave out x."),
        ),
        (("explain", "grpo", "eps=0.1"), "--set eps=0.1 applies to a file, but no file is given"),
        (("plan",), "FILE is missing; see `forgec plan --help`"),
        (
            ("plan", "x.forge", "--format", "jsn"),
            "--format must be one of text, json, not `jsn`; see",
        ),
        (("sim", "x.forge", "--steps", "x"), "--steps must be a whole number, not `x`; see"),
        (("run", "none.json"), "cannot read none.json: no such file or directory"),
        (("lint",), "name a FILE or a folder, or --stdin; see `forgec lint --help`"),
        (("fmt", "--chek", "x.forge"), "no option `--chek`; did you mean `--check`?"),
        (("report", "--foo"), "no option `--foo`; see `forgec report --help`"),
    ],
)
def test_what_a_command_has_no_place_for_is_refused(forgec, words, said: str) -> None:
    done = forgec(*words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"forgec {words[0]}: {said}")


def test_text_whose_quotes_the_shell_took_is_told(forgec) -> None:
    done = forgec("lint", str(PIPELINES / "grpo_math.forge"), "--set", "gsm8k.source=csv(q.csv)")
    assert 'write `"q.csv"`, and put single quotes around the whole argument' in done.output


def test_a_diff_names_the_run_whose_profile_the_file_lacks(forgec, tmp_path: Path) -> None:
    text = (PIPELINES / "dpo_math.forge").read_text("utf-8")
    (tmp_path / "x.forge").write_text(text, "utf-8")
    assert forgec("build", "x.forge", "--profile", "cpu", "-o", "built").exit_code == 0
    (tmp_path / "x.forge").write_text(text.replace("profile cpu ", "profile other "), "utf-8")
    done = forgec("diff", "built", "x.forge")
    assert "built ran under profile `cpu`, which x.forge does not have" in done.output
