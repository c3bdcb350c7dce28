"""The lines to add so that today's findings are accepted: a comment per line of source, and the
section of pyproject.toml for what can be ignored by file.

    # grpo_math.forge:63  append: # forge: allow[L405] REASON
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.report.places import extent
from forgedsl.report.style import PLAIN, Style
from forgedsl.source import SourceFile


def render(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, SourceFile], style: Style = PLAIN
) -> str:
    """A snippet of TOML; errors are comments in it, as they are suppressed in the source."""
    from forgedsl.lint.suppress import SUPPRESSIBLE

    found = list(diagnostics)
    lines: dict[tuple[str, int], list[str]] = {}
    ignores: dict[str, set[str]] = {}
    fixed = []
    for d in found:
        (line, _), _ = extent(d.span, sources)
        if d.severity is not Severity.ERROR:
            ignores.setdefault(d.span.file, set()).add(d.code)
        elif d.code in SUPPRESSIBLE:
            lines.setdefault((d.span.file, line), []).append(d.code)
        else:
            fixed.append(f"# {d.span.file}:{line}  {d.code} has to be corrected: {d.message}")
    text = [
        f"# {file}:{line}  append: # forge: allow[{', '.join(dict.fromkeys(codes))}] REASON"
        for (file, line), codes in sorted(lines.items())
    ]
    text += fixed
    if ignores:
        text += [*([""] if text else []), "[tool.forgec.lint.per-file-ignores]"]
        text += [f'"{f}" = [{_quoted(codes)}]' for f, codes in sorted(ignores.items())]
    return "\n".join(text)


def _quoted(codes: set[str]) -> str:
    return ", ".join(f'"{code}"' for code in sorted(codes))
