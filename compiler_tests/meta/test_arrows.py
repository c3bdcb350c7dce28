"""Who may import whom: the contracts of pyproject.toml, and what light commands load."""

import json
import subprocess
import sys
from pathlib import Path

import grimp
import networkx
import pytest

ROOT = Path(__file__).parents[2]
STACK = {"torch", "monarch", "vllm", "torchtitan", "triton"}


def test_the_import_contracts_are_kept() -> None:
    code = "from importlinter.cli import lint_imports_command as main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-logo", "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions and for types alone count too."""
    found = grimp.build_graph("forgedsl", "forgedsl_runtime", cache_dir=None)
    arrows = [
        (importer, imported)
        for importer in found.modules
        for imported in found.find_modules_directly_imported_by(importer)
    ]
    circles = networkx.strongly_connected_components(networkx.DiGraph(arrows))
    assert [sorted(circle) for circle in circles if len(circle) > 1] == []


def loaded_by(*words: str, whole: bool = False) -> set[str]:
    """Modules in memory after `forgec WORDS` in a fresh interpreter; top level unless `whole`."""
    code = (
        "import json, sys\n"
        "from forgedsl.cli.main import main\n"
        f"sys.argv = {['forgec', *words]!r}\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stderr.splitlines()[-1])
    return set(names) if whole else {name.split(".")[0] for name in names}


@pytest.mark.parametrize(
    "words", [("--help",), ("run", "--help"), ("lint", str(ROOT / "pipelines/grpo_math.forge"))]
)
def test_light_commands_stay_light(words: tuple[str, ...]) -> None:
    heavy = STACK | {"networkx", "numpy", "transformers", "jinja2"}
    assert loaded_by(*words) & heavy == set()


def test_lint_needs_no_job_and_no_terminal_library() -> None:
    """The job's models need pydantic (which takes as long as a check), progress needs rich."""
    modules = loaded_by("lint", str(ROOT / "pipelines/grpo_math.forge"), whole=True)
    assert modules & {"forgedsl.lower.job", "rich.console", "dataclasses", "shutil"} == set()
