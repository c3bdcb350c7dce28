"""Python expressions as text, laid out as `ruff format` would leave them.

    Call("Mesh", [("name", "gen"), ...]) --render--> one line if it fits, else one argument a line

Values are Python constants, lists, tuples, dicts, specs of a job (written as calls that leave out
defaults), and `Raw` text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.records import dataclass

if TYPE_CHECKING:
    from forgedsl.job.parts import Spec

WIDTH = 100
INDENT = "    "


@dataclass(frozen=True, slots=True)
class Raw:
    """Text that is written unchanged: a name, an attribute."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call; an argument without a name is positional."""

    function: str
    args: Sequence[tuple[str | None, Any]]


def statement(head: str, value: Any) -> str:
    """`head` and the value, e.g. `statement("x = ", Call("f", ()))`."""
    return head + _render(value, indent=0, used=len(head), tail=0)


def _render(value: Any, *, indent: int, used: int, tail: int) -> str:
    """Write a value after `used` columns, followed by `tail`."""
    flat = _flat(value)
    if used + len(flat) + tail <= WIDTH or not _parts(value):
        return flat
    opening, items, closing = _brackets(value)
    inner = INDENT * (indent + 1)
    lines = [
        f"{inner}{head}{_render(item, indent=indent + 1, used=len(inner) + len(head), tail=1)},"
        for head, item in items
    ]
    return "\n".join([opening, *lines, INDENT * indent + closing])


def _flat(value: Any) -> str:
    if not _parts(value):
        return _atom(value)
    opening, items, closing = _brackets(value)
    comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
    return opening + ", ".join(head + _flat(item) for head, item in items) + comma + closing


def _parts(value: Any) -> bool:
    """True if the value has parts that can be on lines of their own."""
    return (isinstance(value, Call) and bool(value.args)) or (
        isinstance(value, list | tuple | dict) and len(value) > 0
    )


def _brackets(value: Any) -> tuple[str, list[tuple[str, Any]], str]:
    """Return the opening text, (head, item) of each part, and the closing text."""
    if isinstance(value, Call):
        items = [(f"{name}=" if name else "", item) for name, item in value.args]
        return f"{value.function}(", items, ")"
    if isinstance(value, dict):
        return "{", [(f"{_atom(key)}: ", item) for key, item in value.items()], "}"
    opening, closing = ("[", "]") if isinstance(value, list) else ("(", ")")
    return opening, [("", item) for item in value], closing


def _atom(value: Any) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Call):
        return f"{value.function}()"
    return quoted(value) if isinstance(value, str) else repr(value)


def quoted(text: str) -> str:
    """Write a string literal with the quotes that the formatter prefers."""
    body = repr(text)[1:-1]
    if repr(text)[0] == '"':
        return f'"{body}"'
    if text.count('"') > text.count("'"):
        return f"'{body}'"
    plain = body.replace("\\'", "'").replace('"', '\\"')
    return f'"{plain}"'


def documented(text: str) -> str:
    """Text between triple quotes, each line as it is."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def given(spec: Spec, *, but: Sequence[str] = ()) -> list[tuple[str, Any]]:
    """Return the fields of a spec that differ from their defaults; nested specs are calls."""
    return [
        (name, coded(getattr(spec, name)))
        for name, field in type(spec).model_fields.items()
        if name not in but
        and (
            field.is_required()
            or getattr(spec, name) != field.get_default(call_default_factory=True)
        )
    ]


def coded(value: Any) -> Any:
    """Convert a value of a job to code."""
    from forgedsl.job.parts import Spec

    if isinstance(value, Spec):
        return Call(type(value).__name__, given(value))
    if isinstance(value, tuple | list):
        return type(value)(coded(item) for item in value)
    if isinstance(value, dict):
        return {key: coded(item) for key, item in value.items()}
    return value
