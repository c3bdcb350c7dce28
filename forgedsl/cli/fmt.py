"""`forgec fmt`: write .forge files in their canonical form. There are no style options.

    forgec fmt FILES            rewrite files that are not canonical
    forgec fmt FILES --check    name them, change nothing, exit 1 if there are any
    forgec fmt FILES --diff     show what would change, exit 1 if anything would
    forgec fmt --stdin          read standard input, print the result

A file with syntax errors is not changed: its errors are printed, exit 1. Exit 2: a file cannot be
read or written, or a folder has no .forge files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli.overrides import expand
from forgedsl.cli.parser import Parser, with_examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forgedsl.diagnostics import Reporter
    from forgedsl.source import SourceFile

UNREADABLE = "S016"
STDIN = "<stdin>"


def parser() -> Parser:
    about = "Write .forge files in their canonical form."
    parser = Parser("fmt", with_examples(about, __doc__), "FILE ...", num_words=None)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="a file or a folder")
    parser.add_argument("--check", action="store_true", help="name files that would change")
    parser.add_argument("--diff", action="store_true", help="show what would change")
    parser.add_argument("--stdin", action="store_true", help="standard input to standard output")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    mine = parser()
    options = mine.parse(arguments)
    if bool(options.files) == options.stdin:
        mine.error("name files, or --stdin" if not options.files else "--stdin takes no files")
    if options.stdin:
        return _stdin(options.check, options.diff)
    paths = expand(options.files, "fmt")
    codes = [_file(path, options.check, options.diff) for path in paths]
    if not (options.check or options.diff):
        _summary(codes)
    return max(code for code, _ in codes)


def _file(path: Path, check: bool, diff: bool) -> tuple[int, bool]:
    """Format one file; return the exit code, and True if its text is not canonical."""
    from forgedsl.diagnostics import Reporter
    from forgedsl.format.canonical import canonical
    from forgedsl.syntax import read_source

    reporter = Reporter()
    source = read_source(path, str(path), reporter)
    text = None if source is None else canonical(source, reporter)
    if source is None or text is None:
        _errors(reporter, source, str(path))
        return (2 if any(d.code == UNREADABLE for d in reporter) else 1), False
    if _is_written(path, text):
        return 0, False
    if diff:
        _print_diff(source, text)
    elif check:
        print(f"{path} is not formatted")
    else:
        try:
            path.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            print(f"forgec: cannot write {path}: {error.strerror}", file=sys.stderr)
            return 2, True
        print(f"formatted {path}", file=sys.stderr)
    return (1 if check or diff else 0), True


def _is_written(path: Path, text: str) -> bool:
    return path.read_bytes() == text.encode("utf-8")


def _stdin(check: bool, diff: bool) -> int:
    from forgedsl.diagnostics import Reporter
    from forgedsl.format.canonical import canonical
    from forgedsl.syntax import decode

    reporter = Reporter()
    data = sys.stdin.buffer.read()
    source = decode(data, STDIN, reporter)
    text = None if source is None else canonical(source, reporter)
    if source is None or text is None:
        _errors(reporter, source, STDIN)
        return 1
    changed = data != text.encode("utf-8")
    if diff:
        if changed:
            _print_diff(source, text)
    elif not check:
        sys.stdout.write(text)
    return int(changed and (check or diff))


def _print_diff(source: SourceFile, text: str) -> None:
    import difflib

    lines = difflib.unified_diff(
        source.text.splitlines(), text.splitlines(), source.name, source.name, lineterm=""
    )
    print("\n".join(lines) or f"{source.name}: only line endings or the byte order mark change")


def _errors(reporter: Reporter, source: SourceFile | None, name: str) -> None:
    from forgedsl.report import full
    from forgedsl.report.style import style_for
    from forgedsl.source import SourceFile as Source

    sources = {name: source or Source(name, "")}
    print(full.render(list(reporter), sources, style_for(sys.stderr)), file=sys.stderr)


def _summary(codes: list[tuple[int, bool]]) -> None:
    changed = sum(code == 0 and differs for code, differs in codes)
    same = sum(code == 0 and not differs for code, differs in codes)
    parts = [f"{changed} formatted"] if changed else []
    parts += [f"{same} unchanged"] if same else []
    failed = len(codes) - changed - same
    parts += [f"{failed} left unchanged because of errors"] if failed else []
    print(", ".join(parts) or "no .forge files", file=sys.stderr)
