"""docs/reference/settings.md: every setting of every kind, from forgedsl/schema."""

from forgedsl.hir.evaluate import show
from forgedsl.reference.markdown import GENERATED, code, join, table
from forgedsl.schema.constructors import GYMNASIUM, PROGRAM, STANDARD_REWARDS
from forgedsl.schema.kinds import KINDS, SERVICES, SYNC
from forgedsl.settings import (
    LARGEST,
    Auto,
    Derived,
    Kind,
    Parameter,
    Required,
    Setting,
    Signature,
    Type,
)

INTRODUCTION = """\
All settings, by kind of declaration. Write `a.b` as `a { b = ... }` or `a.b = ...`. On the command
line, a setting is addressed by the name of its declaration (`--set trainer.optimizer.lr=1e-5`), or
by its kind if the file has only one of it (`--set schedule.steps=100`). The plan chooses a value
for `auto` and shows it. `forgec explain trainer.procs FILE` shows where a value comes from.

The column *changes* shows what a setting affects: **numerics** (what is computed), **placement**
(where it is computed) or **observability** (what is logged or saved). `forgec diff` uses the same
classes."""


def page() -> str:
    """The whole reference."""
    parts = ["# Settings", GENERATED, INTRODUCTION]
    parts += [_section(_title(kind), kind) for kind in KINDS.values()]
    parts += [_section(f"service : {name}(model)", kind) for name, kind in SERVICES.items()]
    parts.append(_section("sync, in a flow", SYNC))
    parts += ["# Values in the form of calls", *constructors()]
    return join(parts)


def _title(kind: Kind) -> str:
    return f"{kind.name} {' | '.join(kind.labels)}" if kind.labels else kind.name


def _section(title: str, kind: Kind) -> str:
    parts = [f"## {title}", f"{kind.doc[:1].upper()}{kind.doc[1:]}.", settings_table(kind)]
    if kind.open:
        names = " and ".join(f"`{prefix} {{ ... }}`" for prefix in kind.open)
        parts.append(f"Settings in {names} are passed to the engine unchanged.")
        if kind.taken:
            rows = (f"`{n.rpartition('.')[2]}` ({why})" for n, why in kind.taken)
            parts[-1] += (
                " The runtime sets the following arguments itself, or cannot work with them, so"
                " they are rejected:"
                f" {'; '.join(rows)}."
            )
    return join(parts)


def settings_table(kind: Kind) -> str:
    """The settings of a kind: name, type, default, what it changes, meaning."""
    rows = [
        (
            code(s.name) if not kind.single else code(kind.name),
            type_text(s.type),
            default_text(s),
            s.impact,
            s.doc,
        )
        for s in kind.settings
    ]
    return table(("setting", "value", "default", "changes", "meaning"), rows)


def type_text(type_: Type) -> str:
    """The type in words; a list of constructors is cut to their names."""
    limits = []
    if type_.base in ("int", "float") and type_.minimum is not None:
        limits.append(f">= {type_.minimum:g}")
    if type_.base in ("int", "float") and type_.above is not None:
        limits.append(f"> {type_.above:g}")
    if type_.base in ("int", "float") and type_.maximum is not None and type_.maximum < LARGEST:
        limits.append(f"<= {type_.maximum:g}")
    item = type_.item
    if item is None:
        of = ""
    elif item.base == "ref":
        of = f" of {' or '.join(item.kinds)} names"
    else:
        of = f" of {item.text.replace('a string', 'strings').replace('a number', 'numbers')}"
    text = type_.text.replace("a list", f"a list{of}", 1)
    return text + (f" ({', '.join(limits)})" if limits else "")


def default_text(of: Setting | Parameter) -> str:
    """Return the default as it would be written, or how it is derived."""
    match of.default:
        case Required():
            return "*required*"
        case Derived():
            return of.default.text
        case Auto():
            return "`auto`"
    return code(show(of.default, of.type.base))


def constructors() -> list[str]:
    """List every constructor once, with the settings that accept it."""
    found: dict[tuple[str, str], tuple[Signature, list[str]]] = {}
    for kind in (*KINDS.values(), *SERVICES.values()):
        for setting in kind.settings:
            for signature in setting.type.ctors.values():
                key = (signature.name, signature.doc)
                where = kind.name if kind.single else f"{kind.name}.{setting.name}"
                found.setdefault(key, (signature, []))[1].append(where)
    for signature in (PROGRAM, GYMNASIUM):
        found[signature.name, signature.doc] = (signature, ["environment"])
    for signature in STANDARD_REWARDS.values():
        found[signature.name, signature.doc] = (signature, ["reward"])
    return [_constructor(signature, where) for signature, where in found.values()]


def _constructor(signature: Signature, where: list[str]) -> str:
    places = ", ".join(dict.fromkeys(f"`{place}`" for place in where))
    shown = f"rl.{signature.name}" if where == ["reward"] else signature.name
    words = [p.name if not p.keyword else f"{p.name} = ..." for p in signature.params]
    parts = [
        f"### {shown}({', '.join(words)})",
        f"{signature.doc[:1].upper()}{signature.doc[1:]}. For {places}.",
    ]
    if signature.params:
        rows = [(code(p.name), type_text(p.type), default_text(p)) for p in signature.params]
        parts.append(table(("argument", "value", "default"), rows))
    return join(parts)
