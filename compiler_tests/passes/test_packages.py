"""Packages that environments and agents import: in the job, in the lock, told at a resume."""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path

import pytest
from test_programs import TEXT

from forgedsl.api import load_text
from forgedsl.cli.resuming import differences, note_changes, package_changes
from forgedsl.lint.engine import lint_source
from forgedsl.lower import job as spec
from forgedsl.lower.build import lower
from forgedsl.lower.lock import drift, lock_text, read_lock
from forgedsl.lower.packages import changed, lacking, versions
from forgedsl.source import SourceFile

AGENT = """
import json
import helper, yaml
from forgedsl.agent import Agent

class Desk(Agent):
    parts = ("reward",)

    async def run(self, task, model):
        from aiohttp.client import ClientSession
        import no_such_package
        from . import other
"""


REWARD = """def right(response, target):
    return float(target in response)
"""


def installed(root: Path, **packages: str) -> str:
    """Make an environment with these packages; return its interpreter. `shop_client` is the module
    of the package `shop-sdk`."""
    site = root / "lib/python3.12/site-packages"
    (root / "bin").mkdir(parents=True, exist_ok=True)
    (root / "bin/python").touch(0o755)
    shutil.rmtree(site, ignore_errors=True)
    for name, version in packages.items():
        name = name.replace("_", "-")
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n", "utf-8")
        module = {"shop-sdk": "shop_client"}.get(name, name.replace("-", "_"))
        (folder / "RECORD").write_text(f"{module}/__init__.py,,\n{module}/a.py,,\n", "utf-8")
    return str(root / "bin/python")


def test_imports_of_a_file_have_the_versions_of_their_packages(tmp_path: Path) -> None:
    file = tmp_path / "desk.py"
    file.write_text(AGENT, "utf-8")
    (tmp_path / "helper.py").touch()
    assert versions([file]) == {
        "PyYAML": metadata.version("pyyaml"), "aiohttp": metadata.version("aiohttp")
    }  # fmt: skip
    file.write_text("from forgedsl.mcp import MCPTools", "utf-8")
    assert versions([file]).keys() <= {"mcp"}
    for broken in ("import (", "\0", ""):
        file.write_text(broken, "utf-8")
        assert versions([file, tmp_path / "absent.py"]) == {}


def test_an_interpreter_of_its_own_has_its_own_packages(tmp_path: Path) -> None:
    file = tmp_path / "desk.py"
    file.write_text("import shop_client.orders, aiohttp, other_thing", "utf-8")
    python = installed(tmp_path / "venv", shop_sdk="1.2", other_thing="7", unused="3")
    found = {"shop-sdk": "1.2", "other-thing": "7"}
    assert versions([file], python) == found
    assert changed(found, python) == {}
    installed(tmp_path / "venv", shop_sdk="1.3")
    assert changed(found, python) == {"shop-sdk": ("1.2", "1.3"), "other-thing": ("7", None)}
    assert versions([file], "python") == versions([file], "/bin/sh") == {}
    assert versions([file], str(tmp_path / "gone/bin/python")) == {}


def compiled(folder: Path, python: str) -> spec.Job:
    (folder / "agents").mkdir(exist_ok=True)
    (folder / "agents/desk.py").write_text("import shop_client", "utf-8")
    text = TEXT.replace('["sh", "agents/desk.sh"]', f'["{python}", "agents/desk.py"]')
    found = load_text(text, "t.forge", folder=folder)
    made = lower(found.program, reporter=found.reporter, sources=found.sources, base_dir=folder)
    assert made is not None
    return made.job


def test_versions_are_in_the_job_and_its_lock_and_a_change_is_told_at_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = installed(tmp_path / "venv", shop_sdk="1.2")
    job = compiled(tmp_path, python)
    assert job.environments["desk"].packages == {"shop-sdk": "1.2"}
    lock = read_lock(lock_text(job))
    assert (package_changes(job), drift(job, lock)) == ([], [])

    installed(tmp_path / "venv", shop_sdk="1.3")
    again = compiled(tmp_path, python)
    assert drift(again, lock) == ["environments.desk.packages.shop-sdk: 1.2 -> 1.3"]
    assert differences(job, again) == []  # it stops no resume
    told = package_changes(job)
    note_changes(tmp_path, told)
    said = 'environments.desk.packages.shop-sdk: "1.2" -> "1.3"'
    assert capsys.readouterr().err == f"changed from step 1 on: {said}\n"
    (line,) = (tmp_path / "changes.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line)["changes"] == [
        {"setting": "environments.desk.packages.shop-sdk", "before": "1.2", "after": "1.3"}
    ]


def test_a_reward_in_python_has_the_versions_of_what_it_and_its_modules_import(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text("import yaml\nimport helper\n\n" + REWARD, "utf-8")
    (tmp_path / "helper.py").write_text("import aiohttp\n", "utf-8")
    text = TEXT.replace(
        'import "std/rl" as rl', 'import "std/rl" as rl\nimport python "mine.py" as m'
    )
    old = "reward right(r: Rollout) -> f32 = clamp(r.rewards.reward, 0.0, 1.0)"
    assert old in text
    for before, after in (
        (old, "reward right = m.right"),
        ('"agents/desk.sh"]', '"-c", "true"], reward = none'),
        (
            "prompt = chat(user = row.question)",
            "prompt = chat(user = row.question), target = row.a",
        ),
        ("grade(rollout)", "grade(rollout, prompt.target)"),
    ):
        assert before in text
        text = text.replace(before, after)
    found = load_text(text, "t.forge", folder=tmp_path)
    made = lower(found.program, reporter=found.reporter, sources=found.sources, base_dir=tmp_path)
    assert made is not None, [d.message for d in found.reporter]
    job = made.job
    wanted = {"PyYAML": metadata.version("pyyaml"), "aiohttp": metadata.version("aiohttp")}
    assert job.rewards["right"].packages == wanted
    assert package_changes(job) == []
    lock = read_lock(lock_text(job))
    assert drift(job, lock) == []
    older = job.rewards["right"].model_copy(update={"packages": wanted | {"PyYAML": "1.0"}})
    before = job.model_copy(update={"rewards": {"right": older}})
    now = metadata.version("pyyaml")
    assert drift(job, read_lock(lock_text(before))) == [
        f"rewards.right.packages.PyYAML: 1.0 -> {now}"
    ]
    assert differences(before, job) == []
    (told,) = package_changes(before)
    assert (told.setting, told.before, told.after) == ("rewards.right.packages.PyYAML", "1.0", now)


def test_what_an_interpreter_lacks_is_told_with_the_line_of_the_script(tmp_path: Path) -> None:
    """A file of pipelines/, with an interpreter that has nothing, and with one that has it."""
    pipelines = Path(__file__).parents[2] / "pipelines"
    site = tmp_path / "venv/lib/python3.12/site-packages"
    site.mkdir(parents=True)
    (tmp_path / "venv/bin").mkdir()
    python = tmp_path / "venv/bin/python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)

    def told(name: str) -> list[tuple[str, str]]:
        text = (pipelines / f"{name}.forge").read_text("utf-8")
        text = text.replace('= "python3" ', f'= "{python}" ')
        assert str(python) in text
        found = lint_source(SourceFile(f"{name}.forge", text), pipelines, on_disk=True)
        return [(d.message, d.help or "") for d in found.diagnostics if d.code == "X834"]

    line = f"{python} -m pip install "
    for name, script, module, package in (
        ("verifiers", "verify.py", "openai, verifiers", "verifiers==0.4.0"),
        ("inspect", "evaluate.py", "inspect_ai", "inspect-ai==0.3.285 openai"),
        ("harbor", "harbor_host.py", "harbor, openai", "harbor==0.26.0"),
    ):
        message = f"{python} lacks {module}, which `{script}` of agent `game` imports"
        assert told(name) == [(message, line + package)]
    for module in ("verifiers", "inspect_ai", "harbor", "openai"):
        (site / module).mkdir()
    assert [told(name) for name in ("verifiers", "inspect", "harbor")] == [[], [], []]


def test_what_a_script_goes_on_without_is_not_lacking(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.12/site-packages").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "a.py").write_text(
        "import json\nimport needed\n"
        "try:\n    import faster\nexcept ImportError:\n    faster = None\n"
        "try:\n    import asked\nexcept ImportError as error:\n    raise SystemExit(1) from error\n"
        "if TYPE_CHECKING:\n    import typed\n"
    )
    assert lacking(tmp_path / "a.py", str(tmp_path / "bin/python3")) == ["asked", "needed"]
    assert lacking(tmp_path / "a.py", "python3") == []
