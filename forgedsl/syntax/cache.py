"""The user's cache folder: compiled grammar and parsed standard library, keyed by content hash.

A cache is an optimisation: where the folder cannot be written or an entry cannot be read, callers
get None and do the work again.
"""

from __future__ import annotations

import marshal
import os
import sys
from pathlib import Path
from typing import Any

try:  # the rest of pickle, its form in Python, takes 2 ms
    from _pickle import PickleError, loads  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    from pickle import PickleError, loads

# errors that a damaged entry, or one of another version, can raise while it is unpickled
_DAMAGED = (
    PickleError,
    EOFError,
    AttributeError,
    ImportError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    RuntimeError,
)


def folder() -> Path:
    """Return the cache folder: `$XDG_CACHE_HOME/forgedsl`, else the platform's default."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "forgedsl"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/forgedsl").expanduser()
    return Path("~/.cache/forgedsl").expanduser()


def load(name: str) -> Any:
    """Read the entry `name` (pickle); None if there is none that can be read."""
    try:
        return unpickled((folder() / name).read_bytes())
    except (OSError, RuntimeError):
        return None


def unpickled(data: bytes) -> Any:
    """Return a pickled value; None if it is damaged, or of another version."""
    try:
        return loads(data)
    except _DAMAGED:
        return None


def load_plain(name: str) -> Any:
    """Read the entry `name` (marshal: tuples, lists, dicts, strings and numbers), or return
    None."""
    try:
        return marshal.loads((folder() / name).read_bytes())
    except (OSError, EOFError, ValueError, TypeError, RuntimeError):
        return None


def save(name: str, value: Any) -> None:
    """Write an entry that `load` reads."""
    import pickle

    _write(name, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def save_plain(name: str, value: Any) -> None:
    """Write an entry that `load_plain` reads."""
    _write(name, marshal.dumps(value))


def _write(name: str, data: bytes) -> None:
    """Write an entry in one step, so that a concurrent reader sees all of it or nothing."""
    import tempfile

    try:
        target = folder()
        target.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(target / name)
    except (OSError, RuntimeError):
        return  # the home folder is read-only or missing: the next start builds it again
