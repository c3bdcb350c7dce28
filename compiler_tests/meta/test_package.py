"""The wheel and the sdist: complete, alike, and enough for every command that trains nothing.

git archive --setuptools--> sdist, wheel --installed with the declared dependencies alone--> forgec
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
BUILD = "from setuptools import build_meta as b; print(b.build_sdist('out'), b.build_wheel('out'))"


def tracked() -> set[str]:
    """The files of the package in the repository, by their path in a wheel."""
    names = subprocess.run(
        ["git", "ls-files", "forgedsl", "runtime", "grammar", "pipelines"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    links = {"forgedsl/grammar", "forgedsl/pipelines", ""}
    inside = ("grammar/", "pipelines/")
    editors = "grammar/editors/"  # set up from a checkout (docs/guide/editors.md)
    return {
        f"forgedsl/{name}" if name.startswith(inside) else name.removeprefix("runtime/")
        for name in names
        if name not in links and not name.startswith(editors)
    }


def copied(folder: Path) -> None:
    """Copy the files of git, as they are now, with their links."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    pack = subprocess.Popen(
        ["tar", "-c", "--null", "-T", "-"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    unpack = subprocess.Popen(["tar", "-x", "-C", str(folder)], stdin=pack.stdout)
    assert pack.stdin is not None
    pack.stdin.write(names)
    pack.stdin.close()
    assert (pack.wait(), unpack.wait()) == (0, 0)


def built(folder: Path) -> tuple[Path, Path]:
    """Build (sdist, wheel) of a source tree."""
    subprocess.run(
        [sys.executable, "-c", BUILD], cwd=folder, check=True, capture_output=True, text=True
    )
    (sdist,), (wheel,) = (folder / "out").glob("*.tar.gz"), (folder / "out").glob("*.whl")
    return sdist, wheel


def names_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tree")
    copied(folder)
    return built(folder)


def declared(name: str, found: dict[str, metadata.Distribution]) -> None:
    """Collect a distribution and those that it declares, without extras."""
    dist = metadata.distribution(name)
    if found.setdefault(dist.name.lower(), dist) is not dist:
        return
    for line in dist.requires or ():
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            declared(need.name, found)


@pytest.fixture(scope="module")
def bare(packages: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`forgec` of an environment with the wheel and what it declares, and nothing else. The
    dependencies are links to those of this environment."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(packages[1]).extractall(site)
    (info,) = site.glob("forgedsl-*.dist-info")
    wanted: dict[str, metadata.Distribution] = {}
    for line in metadata.PathDistribution(info).requires or ():
        if "extra ==" not in line:
            declared(Requirement(line).name, wanted)
    for dist in wanted.values():
        for top in {file.parts[0] for file in dist.files or () if file.parts[0] != ".."}:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(dist.locate_file(top))))
    command = folder / "bin/forgec"
    start = "import sys; from forgedsl.cli import start; sys.exit(start())"
    command.write_text(f"#!{folder}/bin/python -I\n{start}\n")
    command.chmod(0o755)
    return command


def test_both_hold_every_file_of_the_package(packages: tuple[Path, Path]) -> None:
    sdist, wheel = packages
    inside = names_in(wheel)
    assert tracked() - inside == set()
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2].removeprefix("runtime/") for name in archive.getnames()}
    assert inside - files == set()


def test_a_wheel_made_of_the_sdist_is_the_same(packages: tuple[Path, Path], tmp_path: Path) -> None:
    sdist, wheel = packages
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert names_in(built(folder)[1]) == names_in(wheel)


@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "--help",
        "init sums",
        "lint sums/grpo.forge",
        "plan sums/grpo.forge --host 8xH200 --profile none",
        "graph sums/grpo.forge --format svg",
        "sim sums/grpo.forge --profile cpu",
        "build sums/grpo.forge --profile cpu -o out --emit job,python,sbatch",
        "explain L411",
        "explain trainer.optimizer.lr sums/grpo.forge",
        "doc rl.grpo",
    ],
)
def test_what_trains_nothing_needs_the_declared_packages_alone(bare: Path, words: str) -> None:
    folder = bare.parents[1]
    done = subprocess.run(
        [bare, *words.split()], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_names_the_command_that_installs_the_rest(bare: Path, tmp_path: Path) -> None:
    subprocess.run([bare, "init", "sums"], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(
        [bare, "run", "sums/grpo.forge"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "pip install --no-deps -r" in done.stderr
    lock = Path(done.stderr.split("-r ")[1].split()[0])
    assert lock.is_file()
    assert not (tmp_path / "runs").exists()


def test_doctor_says_what_is_lacking(bare: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [bare, "doctor"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 4, done.stdout + done.stderr
    assert "packages    LACKS  not installed: torch, torchmonarch, torchtitan," in done.stdout


@pytest.mark.full
def test_the_wheel_trains_with_the_packages_of_a_run(bare: Path, tmp_path: Path) -> None:
    """The packages are those of this environment, but without its forgedsl, which is this tree."""
    (site,) = bare.parents[1].glob("lib/python*/site-packages")
    others = site / "others.pth"
    others.write_text(sysconfig.get_path("purelib") + "\n")
    try:
        where = subprocess.run(
            [bare.parent / "python", "-I", "-c", "import forgedsl; print(forgedsl.__file__)"],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert where.stdout.startswith(str(site))
        subprocess.run([bare, "init", "."], cwd=tmp_path, check=True, capture_output=True)
        short = ["schedule.steps=2", "held_out.limit=20"]
        done = subprocess.run(
            [bare, "run", "grpo.forge", *short, "--run-dir", "run"], cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        others.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(row)["step"] for row in (tmp_path / "run/metrics.jsonl").open()]
    assert steps == [1, 2]
