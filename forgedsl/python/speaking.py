"""Messages that are made in calls of the Python API name arguments of Python, not options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from forgedsl import surface

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def speaks_python(function: F) -> F:
    """Open `surface.python()` around each call of a function."""

    def call(*values: Any, **named: Any) -> Any:
        with surface.python():
            return function(*values, **named)

    async def awaited(*values: Any, **named: Any) -> Any:
        with surface.python():
            return await function(*values, **named)

    wrapper = awaited if inspect.iscoroutinefunction(function) else call
    return functools.update_wrapper(wrapper, function)  # type: ignore[return-value]


def all_speak_python(kind: C) -> C:
    """Open `surface.python()` around the methods and properties of a class."""
    for name, member in list(vars(kind).items()):
        if inspect.isfunction(member):
            setattr(kind, name, speaks_python(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, property(speaks_python(member.fget), doc=member.__doc__))
    return kind
