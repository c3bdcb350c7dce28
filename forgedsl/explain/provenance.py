"""Provenance of a value: `forgec explain trainer.procs FILE`.

The file is loaded once per layer (as written, + profile, + each override). The result is a table
with the value after each layer, for a setting, a parameter, or all settings of a declaration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forgedsl import api
from forgedsl.hir.context import ERROR
from forgedsl.hir.evaluate import show
from forgedsl.ir.program import (
    Constructor,
    Decl,
    Deferred,
    FlowStep,
    Origin,
    Program,
    Ref,
    RewardDecl,
    Value,
)
from forgedsl.mistakes.other_tools import equivalent
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.records import dataclass
from forgedsl.schema.kinds import KINDS, SERVICES, SYNC
from forgedsl.settings import Auto, Derived, Kind, Required, Setting
from forgedsl.source import SourceFile
from forgedsl.types.flow import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The program with all layers up to this one."""

    program: Program
    sources: dict[str, SourceFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The value after a layer, and the span that set it."""

    layer: str
    value: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A path that can be set. `words` are its possible values, if they are few; `owner` is its
    declaration."""

    path: str
    owner: str
    value: str
    doc: str
    words: tuple[str, ...]


def layers(
    path: Path, profile: str, overrides: Sequence[str], set_files: Sequence[Path]
) -> list[Layer] | api.Loaded:
    """Load the program after each layer; return the failed load if one does not resolve."""
    found: list[Layer] = []
    states: list[tuple[str, Sequence[Path], Sequence[str]]] = [("none", (), ())]
    if profile != "none":
        states.append((profile, (), ()))
    states += [(profile, set_files[: i + 1], ()) for i in range(len(set_files))]
    states += [(profile, set_files, overrides[: i + 1]) for i in range(len(overrides))]
    for chosen, files, texts in states:
        loaded = api.load(path, profile=chosen, overrides=texts, set_files=files)
        if loaded.program is None or loaded.reporter.has_errors:
            return loaded
        found.append(Layer(program=loaded.program, sources=loaded.sources))
    return found


def explain(name: str, states: list[Layer]) -> str | None:
    """Return the page of a path; None if the program has no such value."""
    program = states[-1].program
    head, setting = _split(name, program)
    if not setting and head in _settings(program) and head not in program.params:
        return _declaration(head, states)
    if any(key.startswith(f"{setting}.") for key in _settings(program).get(head, {})):
        return _declaration(head, states, f"{setting}.")
    key = setting or "value"
    if _value(program, head, key) is None:
        return _module(name, states[-1])
    schema = _schema(program, head, key)
    lines = [f"{name} = {_shown(_value(program, head, key), schema, states[-1])}"]
    if schema is not None:
        lines.append(f"  {schema.doc}; {schema.type.text}; {schema.impact}")
    elif head in program.params:
        module, _, _ = head.rpartition(".")
        lines.append(f"  a parameter of {f'module `{module}`' if module else 'the file'}")
    rows = list(_rows(head, key, schema, states))
    widths = [max(len(getattr(r, part)) for r in rows) for part in ("layer", "value")]
    lines.append("")
    for i, row in enumerate(rows):
        mark = "  <- in force" if i == len(rows) - 1 and len(rows) > 1 else ""
        text = f"  {row.layer:{widths[0]}}  {row.value:{widths[1]}}  {row.place}".rstrip()
        lines.append(text + mark)
    return "\n".join(lines) + "\n"


def in_force(name: str, state: Layer) -> Row | None:
    """Return the value of a path in a layer, with its origin; None if there is none."""
    head, setting = _split(name, state.program)
    key = setting or "value"
    value = _value(state.program, head, key)
    if value is None or value.value is ERROR:
        return None
    schema = _schema(state.program, head, key)
    shown = _shown(value, schema, state)
    who = value.origin.detail or value.origin.layer
    return Row(layer=who, value=shown, place=_place(value.origin, state))


def _split(name: str, program: Program) -> tuple[str, str]:
    """Split a path into the declaration, with dots if a module declares it, and the setting."""
    parts = name.split(".")
    known = _settings(program).keys() | program.params.keys()
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in known:
            return ".".join(parts[:end]), ".".join(parts[end:])
    return parts[0], ".".join(parts[1:])


def suggestions(name: str, program: Program) -> str:
    """`did you mean ...?` for a path that does not exist."""
    known = [address.path for address in addresses(program)]
    whole = tuple(path for path in known if path.endswith(f".{name}"))[:4]
    head, _, last = name.rpartition(".")
    if not whole and head:  # `trainer.lr` for `trainer.optimizer.lr`
        head = head.partition(".")[0]
        whole = tuple(p for p in known if p.startswith(f"{head}.") and p.endswith(f".{last}"))[:4]
    return (
        did_you_mean(whole)
        or equivalent(last)
        or did_you_mean(nearest(name, [*known, *_settings(program), *program.functions]))
    )


def addresses(program: Program) -> Iterator[Address]:
    """Return all paths that can be set, with their values."""
    for name, value in program.params.items():
        yield Address(path=name, owner="", value=_text(value.value), doc="a parameter", words=())
    settings_by_name = _settings(program)
    only = "sync" in settings_by_name  # the longer name of the same setting is left out
    for head, settings in settings_by_name.items():
        if only and head.startswith("sync."):
            continue
        for key, value in settings.items():
            schema = _schema(program, head, key)
            type_ = None if schema is None else schema.type
            words = () if type_ is None else type_.words
            if type_ is not None and type_.base == "bool":
                words = ("true", "false")
            if type_ is not None and type_.auto:
                words = (*words, "auto")
            yield Address(
                path=head if key == "value" else f"{head}.{key}",
                owner="" if key == "value" else head,
                value=_text(value.value, "" if type_ is None else type_.base),
                doc="" if schema is None else schema.doc,
                words=words,
            )


def _text(value: Any, base: str = "") -> str:
    """Write a value as --set takes it; "" for other values."""
    match value:
        case Auto():
            return "auto"
        case Ref():
            return value.name
        case Constructor() | Deferred():
            return ""
    return show(value, base).strip('"')


def _settings(program: Program) -> dict[str, Any]:
    """Yield the settings of all declarations."""
    groups: tuple[Mapping[str, Decl | RewardDecl], ...] = (
        program.models, program.datasets, program.services, program.rewards,
        *program.declared.values(),
    )  # fmt: skip
    found: dict[str, Any] = {n: d.settings for group in groups for n, d in group.items()}
    found |= {n: d.settings for n, d in (*program.rubrics.items(), *program.evals.items())}
    found |= {n: d.settings for n, d in program.environments.items()}
    found |= {n: d.settings for n, d in program.singletons.items()}
    if program.schedule is not None:
        found["schedule"] = program.schedule.settings
    syncs = {f"sync.{step.settings['target'].value.name}": _of_sync(step)
             for step in program.flow if Role.TRANSFERS in step.roles}  # fmt: skip
    return found | syncs | ({"sync": next(iter(syncs.values()))} if len(syncs) == 1 else {})


def _of_sync(step: FlowStep) -> dict[str, Value]:
    return {setting.name: step.settings[setting.name] for setting in SYNC.settings}


def _value(program: Program, head: str, key: str) -> Value | None:
    if key == "value" and head in program.params:
        return program.params[head]
    value: Value | None = _settings(program).get(head, {}).get(key)
    return value


def _schema(program: Program, head: str, key: str) -> Setting | None:
    kind = _kind(program, head)
    return None if kind is None else kind.setting(key)


def _kind(program: Program, head: str) -> Kind | None:
    if head.partition(".")[0] == "sync":
        return SYNC
    if head in program.services:
        return SERVICES[program.services[head].ctor or ""]
    for group in (
        program.models, program.datasets, program.rubrics, program.evals,
        *program.declared.values(),
    ):  # fmt: skip
        if head in group:
            return KINDS[group[head].kind]
    if head in program.environments:
        return KINDS["environment"]
    return KINDS["reward"] if head in program.rewards else KINDS.get(head)


def _rows(head: str, key: str, schema: Setting | None, states: list[Layer]) -> Iterator[Row]:
    """Return the default, then every layer that sets the value."""
    if schema is not None:
        yield Row(layer="default", value=_default(schema), place="")
    before: tuple[Any, ...] | None = None
    for state in states:
        value = _value(state.program, head, key)
        if value is None or (schema is not None and value.origin.layer == "default"):
            continue
        origin = value.origin
        now = (origin.layer, origin.detail, origin.span)
        if now != before:
            before = now
            layer = "default" if origin.layer == "default" else origin.detail or "file"
            yield Row(layer=layer, value=_shown(value, schema, state), place=_place(origin, state))


def _default(schema: Setting) -> str:
    match schema.default:
        case Required():
            return "none, it must be given"
        case Derived():
            return schema.default.text
        case Auto():
            return "auto"
    return show(schema.default, schema.type.base)


def _shown(value: Value | None, schema: Setting | None, state: Layer) -> str:
    """Return the value, and the written expression if that differs."""
    assert value is not None
    folded = value.value
    written = _written(value.origin, state)
    if isinstance(folded, Deferred):
        span = folded.expr.span
        source = state.sources.get(span.file)
        return source.text[span.start : span.end] if source else "an expression"
    if isinstance(folded, Auto):
        return "auto (the plan decides)"
    if isinstance(folded, Ref):
        return folded.name
    text = show(folded, "" if schema is None else schema.type.base)
    if (
        isinstance(folded, Constructor)
        or not written
        or written.strip('"') == text.strip('"')
        or _is_number(written)
    ):
        return text
    return f"{text} (written {written})"


def _is_number(text: str) -> bool:
    """True for a number: it may be written in another way than it is shown (1.0 and 1)."""
    return text.replace("_", "").replace(".", "").replace("e-", "").isdecimal()


def _written(origin: Origin, state: Layer) -> str:
    if origin.span is None or origin.span.file not in state.sources:
        return ""
    text = state.sources[origin.span.file].text[origin.span.start : origin.span.end]
    return text if len(text) <= 60 and "\n" not in text else ""


def _place(origin: Origin, state: Layer) -> str:
    if origin.span is None or origin.span.file.startswith("<"):
        return ""
    source = state.sources.get(origin.span.file)
    if source is None or not source.text:
        return ""
    line, column = source.position(origin.span.start)
    return f"{origin.span.file}:{line}:{column}"


def _module(name: str, state: Layer) -> str | None:
    """Return the page of a module: its parameters, and the declarations that the program uses."""
    program, prefix = state.program, f"{name}."
    values = {n: v for n, v in program.params.items() if n.startswith(prefix)}
    declared = [n for n in _settings(program) if n.startswith(prefix)]
    if not values and not declared:
        return None
    shown = {head: _shown(value, None, state) for head, value in values.items()}
    width = max(len(head) for head in (*values, *declared)) - len(prefix)
    column = max(map(len, shown.values()), default=0)
    lines = [f"{name}: a module", ""]
    for head, value in values.items():
        who = f"{value.origin.detail or 'file'}  {_place(value.origin, state)}".rstrip()
        lines.append(f"  {head.removeprefix(prefix):{width}}  {shown[head]:{column}}  {who}")
    for head in declared:
        kind = _kind(program, head)
        assert kind is not None
        lines.append(f"  {head.removeprefix(prefix):{width}}  {kind.doc}")
    return "\n".join(lines) + "\n"


def _declaration(head: str, states: list[Layer], block: str = "") -> str:
    """Return every setting of a declaration, or of a block, with value and layer."""
    state = states[-1]
    kind = _kind(state.program, head)
    every = _settings(state.program)[head]
    settings = {name: value for name, value in every.items() if name.startswith(block)}
    lines = [f"{head}: {kind.doc}" if kind is not None else head, ""]
    width = max((len(name) for name in settings), default=0)
    for name, value in settings.items():
        place = _place(value.origin, state)
        who = "default" if value.origin.layer == "default" else value.origin.detail or "file"
        tail = f"{who}  {place}".rstrip()
        schema = None if kind is None else kind.setting(name)
        lines.append(f"  {name:{width}}  {_shown(value, schema, state):24}  {tail}")
    return "\n".join(lines) + "\n"
