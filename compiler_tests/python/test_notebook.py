"""The notebook of docs/examples runs from top to bottom in a kernel of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
NOTEBOOK = ROOT / "docs" / "examples" / "notebook.ipynb"


def outputs(cell: Any) -> dict[str, str]:
    """What a cell shows, by kind of content."""
    found: dict[str, str] = {}
    for output in cell.outputs:
        kinds = {"stream": output.get("text", "")} | dict(output.get("data", {}))
        for kind, text in kinds.items():
            found[kind] = found.get(kind, "") + text
    return found


def test_the_notebook_has_the_file_of_the_readme_and_no_outputs() -> None:
    import nbformat

    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    assert not any(cell.get("outputs") for cell in book.cells)
    written = book.cells[1].source.removeprefix("%%writefile sums.forge\n")
    assert f"```forge sums.forge\n{written}\n```" in README.read_text("utf-8")


def executed(book: Any, folder: Path) -> list[dict[str, str]]:
    """What each cell of code shows, run from top to bottom in a kernel of its own."""
    from nbclient import NotebookClient

    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return [outputs(cell) for cell in book.cells if cell.cell_type == "code"]


def test_the_notebook_checks_and_plans(tmp_path: Path) -> None:
    """The cells before its first run."""
    import nbformat

    book = nbformat.read(NOTEBOOK, as_version=4)
    train = next(i for i, cell in enumerate(book.cells) if ".run(" in cell.source)
    book.cells = book.cells[:train]
    _, _, lint, plan, graph = executed(book, tmp_path)
    assert "1 file, no findings" in lint["text/html"]
    assert "policy age" in plan["text/html"]
    assert "<svg" in graph["text/html"]


@pytest.mark.full
def test_the_notebook_runs(tmp_path: Path) -> None:
    import nbformat

    book = nbformat.read(NOTEBOOK, as_version=4)
    shown = executed(book, tmp_path)
    _, _, lint, plan, graph, first, curve, compared, best, rewards, frame = shown
    assert "1 file, no findings" in lint["text/html"]
    assert "policy age" in plan["text/html"]
    assert "<svg" in graph["text/html"]
    assert "sums finished: 10 steps" in first["text/plain"]
    assert "image/png" in curve
    assert "reward_mean" in curve["text/plain"]
    assert "2 runs, 2 groups" in compared["text/plain"]
    assert "trainer.optimizer.lr" in best["stream"]
    assert rewards["text/plain"].startswith("([0.")
    assert "5  " in frame["text/plain"]
