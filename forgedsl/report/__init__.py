"""Renderers of diagnostics: one module per format, `render(diagnostics, sources, style) -> str`.

`render_as(format, ...)` imports the module of a format on demand.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forgedsl.diagnostics import Diagnostic
    from forgedsl.report.style import Style
    from forgedsl.source import SourceFile

FORMATS = ("full", "concise", "json", "github", "sarif", "markdown")


def render_as(
    format_: str, diagnostics: Iterable[Diagnostic], sources: Mapping[str, SourceFile], style: Style
) -> str:
    """Render all diagnostics in one of FORMATS."""
    module = importlib.import_module(f"forgedsl.report.{format_}")
    text: str = module.render(diagnostics, sources, style)
    return text
