"""docs/reference/rules.md: every code that the compiler can print, from the pages of `explain`."""

from forgedsl.explain.codes import FAMILIES, LEVELS, markdown_page, pages
from forgedsl.reference.markdown import GENERATED, join, table

INTRODUCTION = """\
Every message of `forgec` has a code; `forgec explain CODE` prints its page. An *error* stops the
compiler. An *error, can be suppressed* is one that is sometimes right: a comment at its line, or
above it, says so and why:

```text
ratio = exp(logprob - behavior)  # forge: allow[L405] log-ratios stay below 1 here, measured
```

A comment without a reason is N902, one that matches nothing is N903. Severities, and which warnings
are shown, are set in `pyproject.toml`:

```toml
[tool.forgec.lint]
ignore = ["L412"]                # warnings and information, by code or prefix
error = ["R508"]                 # this one stops the compiler here
warn = ["L405"]                  # an error that can be suppressed, shown as a warning
per-file-ignores = { "drafts/*" = ["N9"] }
```"""


def page() -> str:
    """The whole reference."""
    known = pages()
    parts = ["# Rules", GENERATED, INTRODUCTION]
    overview = [
        (f"[{p.code}](#{p.code.lower()}-{p.name})", p.name, LEVELS[p.level], p.summary)
        for p in known.values()
    ]
    parts.append(table(("code", "name", "level", "what it says"), overview))
    for letter, family in FAMILIES.items():
        members = [p for p in known.values() if p.code[0] == letter]
        if members:
            parts.append(f"# {letter}: {family}")
            parts += [markdown_page(p) for p in members]
    return join(parts)
