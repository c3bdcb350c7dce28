"""Decides which arguments a Python reward is called with: by parameter name, else by position.

    prompt, messages, response (completion, output), target, rollout, row   by name
    `r` as the first of several                          the rollout, then the target
    names without meaning (`a`, `x`)                     (prompt, response, target) or
                                                         (rollout, target), by position
    any other name                                       the column of that name
    `completions`                                        as TRL calls rewards: lists of length
                                                         one, and every column by keyword

A parameter with a default gets no argument by position, and a column only if the row has it.
"""

from __future__ import annotations

from forgedsl.ir.program import PythonFunction, PythonParameter
from forgedsl.records import dataclass

SOURCES = {
    "prompt": "prompt", "messages": "messages", "response": "response", "completion": "response",
    "output": "response", "target": "target", "rollout": "rollout", "row": "row",
}  # fmt: skip
TRL = {"completions": "response", "prompts": "prompt", "completion_ids": "token_ids"}
TRL_ONLY = ("trainer_state", "log_extra", "log_metric", "environments")
THREE = ("prompt", "response", "target")
TWO = ("rollout", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Arguments of a call: `by_name` maps parameters to sources, `by_place` lists the sources of
    positional parameters; with `lists` each argument is a list of length one (TRL)."""

    by_name: dict[str, str]
    by_place: tuple[str, ...] = ()
    lists: bool = False


def inputs_of(function: PythonFunction) -> Inputs | str:
    """Return the arguments of a call, or why the function cannot be called as a reward."""
    free = [param for param in function.params if param.name not in function.args]
    if any(param.name in TRL and param.name.endswith("s") for param in free):
        return _trl(function, free)
    if function.any_number:
        return Inputs(by_name={}, by_place=THREE)
    given = _places([p for p in free if p.required and not p.keyword])
    if isinstance(given, str):
        return given
    for index, param in enumerate(free):
        source = given.get(param.name) or SOURCES.get(param.name) or _column(param)
        first_r = param.name == "r" and index == 0
        given[param.name] = "rollout" if first_r else source
    seen = [source for source in given.values() if source in ("response", "rollout", "messages")]
    if not seen:
        return "does not receive the response: name a parameter `response` or `rollout`"
    return Inputs(
        by_name={p.name: given[p.name] for p in free if not p.by_position},
        by_place=tuple(given[p.name] for p in free if p.by_position),
    )


def _trl(function: PythonFunction, free: list[PythonParameter]) -> Inputs | str:
    alien = next((p.name for p in free if p.required and p.name in TRL_ONLY), "")
    if alien:
        return f"needs `{alien}`, which only TRL's trainer provides"
    sources = {**TRL, "target": "target"}
    given = {p.name: sources.get(p.name) or _column(p) for p in free if p.name not in TRL_ONLY}
    if function.any_name:
        given["**"] = "row"
    return Inputs(by_name=given, lists=True)


def _places(required: list[PythonParameter]) -> dict[str, str] | str:
    """Return the sources of required parameters whose names have no meaning, by their position."""
    names = [param.name for param in required]
    taken = {SOURCES[name] for name in names if name in SOURCES}
    slots: tuple[str, ...] = ()
    if names[:1] in (["r"], ["rollout"]):
        slots = TWO
    elif names[:1] == ["prompt"] or (names and names[0] not in SOURCES):
        if len(names) == 1 and not taken:
            return f"takes 1 argument, `{names[0]}`, whose name does not say which value it needs"
        slots = THREE if len(names) > 2 else () if taken else TWO
    return {
        name: slot
        for name, slot in zip(names, slots, strict=False)
        if name not in SOURCES and slot not in taken
    }


def _column(param: PythonParameter) -> str:
    return f"column {param.name}" if param.required else f"column? {param.name}"
