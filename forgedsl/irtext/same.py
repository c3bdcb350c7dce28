"""Whether two IRs are equal, where `==` would not end: scopes hold functions that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forgedsl.records import fields


def same(first: Any, second: Any) -> bool:
    """Equal types, values and order all the way down; cycles are equal if no path differs."""
    return difference(first, second) is None


def difference(first: Any, second: Any) -> str | None:
    """Where two IRs differ first, such as `.services.trainer.settings`; None if they do not."""
    return _Comparison().find(first, second, "")


class _Comparison:
    """One comparison. `open` are the pairs that are being, or have been, compared."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()

    def find(self, a: Any, b: Any, path: str) -> str | None:
        if a is b:
            return None
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if list(a) != list(b):
                return path
            return self.first((a[key], b[key], f"{path}.{key}") for key in a)
        if type(a) is not type(b):
            return path or "."
        if isinstance(a, tuple | list):
            if len(a) != len(b):
                return path
            return self.first(
                (x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))
            )
        if hasattr(type(a), "_record"):
            if (id(a), id(b)) in self.seen:
                return None
            self.seen.add((id(a), id(b)))
            names = [field.name for field in fields(a)]
            return self.first((getattr(a, n), getattr(b, n), f"{path}.{n}") for n in names)
        return None if a == b else path or "."

    def first(self, parts: Any) -> str | None:
        """The first difference among parts."""
        return next((at for part in parts if (at := self.find(*part)) is not None), None)
