"""Renderers of diagnostics: one module per format, `render(diagnostics, sources, style) -> str`."""

FORMATS = ("full", "concise", "json", "jsonl")
