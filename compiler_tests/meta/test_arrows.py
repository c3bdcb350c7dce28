"""Who may import whom. Static tools cannot see the folders that are mapped into the package at
install time (runtime/, grammar/, pipelines/), so the arrows are read from the source here."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STACK = {"torch", "monarch", "vllm", "torchtitan", "triton"}


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, at any depth of the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def offenders(folder: str, forbidden: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in imports(path)
        if name.split(".")[0] in forbidden
    ]


def test_the_compiler_imports_nothing_of_the_stack() -> None:
    assert offenders("forgedsl", STACK) == []


def test_losses_need_torch_and_triton_only() -> None:
    assert offenders("runtime/losses", STACK - {"torch", "triton"}) == []


@pytest.mark.parametrize("folder", ["runtime/readers", "forgedsl/runs"])
def test_readers_and_the_report_need_nothing_of_the_stack(folder: str) -> None:
    assert offenders(folder, STACK) == []


@pytest.mark.parametrize("folder", ["syntax", "hir", "types", "losses", "graph", "plan", "lint"])
def test_passes_know_nothing_of_the_runtime(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "forgedsl" / folder).rglob("*.py"))
        for name in imports(path)
        if name.startswith("forgedsl.runtime") and name != "forgedsl.runtime.losses"
    ]
    assert found == []


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
    """The job's models need pydantic (which typer loads by itself), progress needs rich."""
    modules = loaded_by("lint", str(ROOT / "pipelines/grpo_math.forge"), whole=True)
    assert modules & {"forgedsl.lower.job", "rich.console"} == set()
