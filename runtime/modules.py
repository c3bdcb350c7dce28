"""Generated Python text -> module, with its lines visible in tracebacks."""

from __future__ import annotations

import linecache
import types


def load_module(name: str, text: str) -> types.ModuleType:
    """Execute generated source as module `name`; tracebacks show its lines."""
    filename = f"<generated {name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = types.ModuleType(name)
    module.__file__ = filename
    exec(compile(text, filename, "exec"), module.__dict__)
    return module
