"""docs/certificates.md, from the table of cases and the versions of the goldens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from certificate_cases import CASES, FIELDS, Case

HEAD = """\
# Certificates: losses of other projects, and ours

<!-- Written by `pytest compiler_tests/certificates --update-golden`; do not edit. -->

The loss code of TRL {trl}, verl {verl} and torchtitan {torchtitan} (its RL example) was run on one
batch: six sequences of 1 to 9 tokens, or three pairs, with ratios far on both sides of every clip.
Value and gradient of the losses here are equal to theirs: the largest difference is below 1e-6 of
the largest number, in float64 and in float32. Tests compare them; the recorded numbers, and the
script that made them, are in `compiler_tests/certificates`.

A row with `differs` names the term in which our library's loss (`near`) differs from theirs. It
also has a link to a loss that is equal to theirs, at the end of this page.

- The libraries bound log-ratios differently: `rl.importance` at 20, verl at 20, torchtitan at 10,
  TRL not at all. The losses are equal for log-ratios inside the bounds of both sides.
- Counts are those of the whole batch here. TRL and verl give the same numbers if the batch is one
  microbatch of one rank, or if they are told the counts of the whole batch.

To compare a loss with a function of your own in PyTorch, use
[`forgec certify`](guide/certify.md).
"""
TITLES = {"trl": "TRL", "verl": "verl", "torchtitan": "torchtitan"}
CHANGED = {"trl": "trainer and arguments", "verl": "policy loss", "torchtitan": "class"}


def page(versions: Mapping[str, str]) -> str:
    """The page as Markdown."""
    numbers = {case: n for n, case in enumerate((c for c in CASES if _own(c)), 1)}
    lines = [HEAD.format(**versions)]
    for project, title in TITLES.items():
        lines += [f"## {title} {versions[project]}", "", f"| {CHANGED[project]} | here | |"]
        lines.append("|---|---|---|")
        lines += [_row(case, numbers) for case in CASES if case.project == project]
        lines.append("")
    lines += ["## The losses that are not in the library", ""]
    lines += ["Each loss declares those of these fields that it reads:", "", "```text"]
    lines += [each for fields in FIELDS.values() for each in _wrapped(fields)]
    lines.append("```")
    for case, number in numbers.items():
        lines += ["", f"### Loss {number}", "", f"{TITLES[case.project]}, {case.theirs}:", ""]
        lines += ["```text", *case.source.strip("\n").split("\n"), "```"]
    return "\n".join(lines) + "\n"


def _own(case: Case) -> bool:
    return "minimize" in case.source


def _row(case: Case, numbers: Mapping[Case, int]) -> str:
    number = numbers.get(case)
    if not case.source:
        return f"| {case.theirs} | not expressible | {case.why} |"
    link = "" if number is None else f"[loss {number}](#loss-{number})"
    if number is None:
        return f"| {case.theirs} | {_call(case.source, case.params)} | equal{_note(case)} |"
    if not case.differs:
        return f"| {case.theirs} | {link} | equal{_note(case)} |"
    near = _call(case.library, case.library_params)
    return f"| {case.theirs} | {link}; near: {near} | differs in {case.differs} |"


def _note(case: Case) -> str:
    return f"; {case.note}" if case.note else ""


def _call(name: str, params: Mapping[str, Any]) -> str:
    given = ", ".join(f"{key} = {value}" for key, value in params.items())
    return f"`rl.{name}({given})`" if given else f"`rl.{name}`"


def _wrapped(fields: str) -> Iterator[str]:
    line = ""
    for part in fields.replace(", ", ",\n").replace(",\nT", ", T").split("\n"):
        if line and len(line) + len(part) > 98:
            yield line.rstrip()
            line = ""
        line += part + " "
    yield line.rstrip()
