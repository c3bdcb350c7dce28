"""What the documents say is true: blocks compile, commands and targets exist, names are pinned."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import forgedsl
from forgedsl import api

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.S | re.M)


CODE = re.compile(r"^```.*?^```|^ {4}\S.*|`[^`\n]+`", re.S | re.M)


def blocks(language: str) -> list:
    """(text, place) of every fenced block of a language; those of the guide have their own test."""
    return [
        pytest.param(match[3], id=f"{path.relative_to(ROOT)}:{i}")
        for path in TEXTS
        if path.parent.name != "guide"
        for i, match in enumerate(FENCE.finditer(path.read_text(encoding="utf-8")), 1)
        if match[1] == language
    ]


@pytest.mark.parametrize("text", blocks("forge"))
def test_forge_blocks_compile(text: str) -> None:
    if "flow " in text:
        loaded = api.load_text(text, "block.forge", folder=ROOT / "pipelines", profile="none")
        assert [f"{d.code} {d.message}" for d in loaded.reporter if d.severity == "error"] == []
    else:
        api.load_functions(text)


def commands() -> list[str]:
    """The words after `forgec` in code of the README and the guide."""
    texts = [path.read_text("utf-8") for path in TEXTS if path.parent.name in ("guide", ROOT.name)]
    code = "\n".join(part for text in texts for part in re.findall(CODE, text))
    return sorted(set(re.findall(r"(?:^|`|\$ )forgec ([a-z]+)", code, re.M)))


def test_the_readme_names_commands() -> None:
    assert {"run", "report", "lint"} <= set(commands())


@pytest.mark.parametrize("name", commands())
def test_commands_of_the_readme_exist(name: str) -> None:
    code = f"import sys; sys.argv = ['forgec', {name!r}, '--help']\n"
    code += "from forgedsl.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, name in done.stdout) == (0, True), done.stderr


def test_make_targets_of_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.M))
    named = {
        name
        for path in TEXTS
        for name in re.findall(r"(?:`|^ {4})make ([a-z]+)", path.read_text(encoding="utf-8"), re.M)
    }
    assert named >= {"run", "test"}
    assert named - targets == set()


def links() -> list:
    return [
        pytest.param(path.parent / target, id=f"{path.relative_to(ROOT)}:{target}")
        for path in TEXTS
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("target", links())
def test_links_between_documents_lead_somewhere(target: Path) -> None:
    assert target.exists()


def test_exported_names_are_pinned() -> None:
    assert sorted(forgedsl.__all__) == [
        "Agent", "Pipeline", "PipelineError", "__version__", "compare", "compile_loss", "load",
        "open_run",
    ]  # fmt: skip
    assert sorted(api.__all__) == [
        "Host", "Loaded", "load", "load_functions", "load_text", "overrides_of",
    ]  # fmt: skip


def test_every_field_of_metrics_is_documented() -> None:
    from forgedsl_runtime.data_types import Batch, StepResult
    from forgedsl_runtime.step_metrics import Meter, batch_record, step_record

    result = StepResult(
        version=1, loss=0.0, grad_norm=1.0, lr=1e-6, tokens=1, metrics={}, kernel="torch/linear"
    )
    fields = Meter().end_iteration() | batch_record(Batch(samples=[]), [], []) | step_record(result)
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [name for name in fields if f"`{name}`" not in text] == []


def linked(path: Path) -> set[Path]:
    """The documents that a document links to."""
    targets = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    return {(path.parent / target).resolve() for target in targets}


def test_every_document_is_reached_from_the_index() -> None:
    reached, found = set(), {(ROOT / "docs" / "index.md").resolve()}
    while found - reached:
        page = min(found - reached)
        reached.add(page)
        found |= linked(page)
    documents = {path.resolve() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(path.name for path in documents - reached) == []


def test_toml_in_documents_can_be_read() -> None:
    """Settings of editors and tools that nobody runs here are at least TOML."""
    found = [
        (page.name, block)
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for block in re.findall(r"^```toml[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    ]
    assert any(page == "editors.md" for page, _ in found)
    for _, block in found:
        tomllib.loads(block)


def test_no_text_has_marks_of_an_unfinished_merge() -> None:
    marks = re.compile(r"^(<{7}|>{7}) ", re.M)
    assert [path for path in TEXTS if marks.search(path.read_text(encoding="utf-8"))] == []
