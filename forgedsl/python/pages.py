"""Pages that the Python API returns: text as the commands print it, HTML in a notebook."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.errors import PipelineError, write_text
from forgedsl.notebook import preformatted
from forgedsl.python.speaking import all_speak_python
from forgedsl.report.findings import error_of, render_diagnostics
from forgedsl.source import SourceFile

__all__ = [
    "Findings", "Picture", "PipelineError", "PlanPage", "error_of", "preformatted",
    "render_diagnostics",
]  # fmt: skip

if TYPE_CHECKING:
    from forgedsl.cli.planning import Planned
    from forgedsl.drawing.drawing import Drawing
    from forgedsl.lower.job import Job


@all_speak_python
class Findings(Sequence[Diagnostic]):
    """The findings of `lint`: a sequence of diagnostics, printed as `forgec lint` prints them."""

    def __init__(self, found: Sequence[Diagnostic], sources: Mapping[str, SourceFile]) -> None:
        self._found = tuple(found)
        self.sources = sources

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(each for each in self._found if each.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(each for each in self._found if each.severity is Severity.WARNING)

    @overload
    def __getitem__(self, index: int) -> Diagnostic: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Diagnostic]: ...

    def __getitem__(self, index: int | slice) -> Diagnostic | Sequence[Diagnostic]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(self._found)

    def __repr__(self) -> str:
        from forgedsl.cli.lint import summary

        text = render_diagnostics(self._found, self.sources)
        return f"{text}\n\n{summary(list(self._found), 1)}" if text else summary([], 1)

    def _repr_html_(self) -> str:
        return preformatted(repr(self))


@all_speak_python
class PlanPage:
    """A plan: the page of `forgec plan`, the same as data, and the job that would run."""

    def __init__(self, planned: Planned) -> None:
        assert planned.lowered is not None
        self._planned = planned
        self.job: Job = planned.lowered.job

    @property
    def document(self) -> dict[str, Any]:
        """The content of plan.json, as `forgec plan --format json` writes it."""
        from forgedsl.cli.plan import document

        found: dict[str, Any] = json.loads(document(self._planned))
        return found

    def __repr__(self) -> str:
        from forgedsl.cli.plan import page

        return page(self._planned)

    def _repr_html_(self) -> str:
        return preformatted(repr(self))


@all_speak_python
class Picture:
    """One view of a planned pipeline, in any format of `forgec graph`."""

    def __init__(self, drawing: Drawing, view: str) -> None:
        self._drawing = drawing
        self.view = view

    def render(self, format_: str = "svg") -> str:
        """The view as text, svg, html, json, dot or mermaid."""
        from forgedsl.cli.graph import Format

        known = [each.value for each in Format]
        if format_ not in known:
            raise PipelineError(f"there is no format {format_!r}; it is one of {', '.join(known)}")
        return self._drawing.render(self.view, format_)

    def save(self, path: str | Path) -> Path:
        """Write the view in the format that the name ends with, such as `graph.html`."""
        path = Path(path)
        text = self.render({"txt": "text", "mmd": "mermaid"}.get(kind := path.suffix[1:], kind))
        write_text(path, text)
        return path

    def __repr__(self) -> str:
        return self.render("text")

    def _repr_html_(self) -> str:
        return self.render("svg")
