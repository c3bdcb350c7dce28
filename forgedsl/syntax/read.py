"""Bytes of a .forge file -> `SourceFile`, or one diagnostic that says why it is not source text.

Refused: unreadable files, files over MAX_BYTES, NUL bytes, anything but UTF-8, empty files.
A byte order mark is dropped; CRLF line ends are fine.
"""

from __future__ import annotations

import os
from pathlib import Path

from forgedsl import surface
from forgedsl.diagnostics import Diagnostic, Reporter, Severity
from forgedsl.source import SourceFile, Span

MAX_BYTES = 8 * 2**20
ROWS = (
    "to use it as data, write `source = jsonl(path)`, `parquet(path)`, `csv(path)` or "
    "`json(path)` in a dataset"
)
VALUES = "to use it as settings, write `{option}`"
FOREIGN = {
    ".py": (
        "Python",
        'to use rewards from it, write `import python "{name}" as NAME` in a .forge file',
    ),
    **dict.fromkeys((".jsonl", ".parquet", ".csv", ".json"), ("data", ROWS)),
    **dict.fromkeys((".yaml", ".yml"), ("YAML", VALUES)),
    ".toml": ("TOML", VALUES),
    ".md": ("Markdown", "to use a program that is in it, copy that program into a .forge file"),
    ".ipynb": ("a notebook", "`forgedsl.load` reads a .forge file in a notebook"),
}
"""files that people pass by mistake, by suffix: what each is, and where it belongs"""


def read_source(path: Path, name: str, reporter: Reporter) -> SourceFile | None:
    """Read the file at `path`, shown to the user as `name`."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            _refuse(reporter, name, "S012", "file-too-large", _size_message(size))
            return None
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # a device has no size, and reading it may never end
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot read {name}: {reason.lower()}"
        _refuse(reporter, name, "S016", "unreadable-file", message, _meant(path))
        return None
    if path.suffix in FOREIGN:
        what, help_text = FOREIGN[path.suffix]
        message = f"{name} is {what}, not a .forge file"
        meant = help_text.format(name=name, option=surface.option("--set-file", name))
        _refuse(reporter, name, "S016", "unreadable-file", message, meant)
        return None
    return decode(data, name, reporter)


def _meant(path: Path) -> str:
    """Suggest a file for a folder, or for a name that does not exist."""
    if not path.exists() and path.parent.is_dir():
        from difflib import get_close_matches

        beside = {file.stem: str(file) for file in path.parent.glob("*.forge")}
        close = get_close_matches(path.stem, beside, n=1, cutoff=0.6)
        return f"did you mean `{beside[close[0]]}`?" if close else ""
    if not (path.is_dir() and os.access(path, os.R_OK | os.X_OK)):
        return ""
    if (path / "job.json").is_file():
        opened = f'forgedsl.open_run("{path}")'
        again = surface.call(f"run {path / 'job.json'}", opened)
        on = surface.call(f"run --resume {path}", f"{opened}.resume()")
        does = "opens" if surface.in_python() else "repeats"
        return f"this is a run folder: `{again}` {does} it, `{on}` continues it"
    files = sorted(str(file) for file in path.glob("*.forge"))
    return f"name a file of it: {', '.join(files[:6])}" if files else ""


def decode(data: bytes, name: str, reporter: Reporter) -> SourceFile | None:
    """Decode `data` to source text; report why it is none."""
    if len(data) > MAX_BYTES:
        _refuse(reporter, name, "S012", "file-too-large", _size_message(len(data)))
        return None
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        message = f"this is not a text file: NUL byte on line {line}"
        _refuse(reporter, name, "S014", "binary-file", message, _utf_16(data, name))
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"this file is not UTF-8: byte 0x{data[error.start]:02x} on line {line}"
        _refuse(reporter, name, "S013", "not-utf-8", message, "save the file as UTF-8")
        return None
    if not text.strip():
        _refuse(
            reporter,
            name,
            "S015",
            "empty-file",
            "this file is empty",
            "a program needs at least a model, a service, a loss and a flow; "
            "`forgec init` writes an example to start from",
        )
        return None
    return SourceFile(name, text)


def _utf_16(data: bytes, name: str) -> str:
    """Return the help for a UTF-16 file, as Windows programs write it: how to convert it."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        kind = "UTF-16"
    elif b"\0" in (data[:1], data[1:2]):  # in UTF-16 one byte of `f` or `#` is 0
        kind = "UTF-16LE" if data[1:2] == b"\0" else "UTF-16BE"
    else:
        return ""
    return f"it looks like {kind}: save it as UTF-8, or `iconv -f {kind} -t UTF-8 {name} > NEW`"


def _size_message(size: int) -> str:
    return f"this file has {size / 2**20:.1f} MiB, but the limit is {MAX_BYTES // 2**20} MiB"


def _refuse(
    reporter: Reporter, name: str, code: str, rule: str, message: str, help_text: str = ""
) -> None:
    reporter.report(
        Diagnostic(
            code=code,
            name=rule,
            severity=Severity.ERROR,
            message=message,
            span=Span(name, 0, 0),
            help=help_text,
        )
    )
