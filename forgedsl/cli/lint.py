"""`forgec lint`: check files as written and under each of their profiles.

    forgec lint pipelines                          every .forge file of a folder
    forgec lint x.forge --fix                      apply the safe fixes
    forgec lint x.forge trainer.procs=2 --group 4  with overrides
    forgec lint x.forge --format sarif > x.sarif   for other tools
    forgec lint --stdin x.forge < edited.txt       unsaved text of x.forge

Findings go to stdout in every format. Exit 0 without errors (warnings allowed), 1 with errors or
with a non-empty `--diff`, 2 if a file cannot be read, a folder has no .forge files, or the command
line or configuration is wrong.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl import surface
from forgedsl.cli.overrides import SET_HELP, expand
from forgedsl.diagnostics import counted
from forgedsl.records import dataclass, field
from forgedsl.report import FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forgedsl.cli.parser import Parser
    from forgedsl.diagnostics import Diagnostic
    from forgedsl.lint.config import Config
    from forgedsl.lint.engine import Linted
    from forgedsl.source import SourceFile

UNREADABLE = "S016"
STDIN = "<stdin>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options, with the defaults of the parser."""

    files: list[Path]
    stdin: bool = False
    format: str = "full"
    profile: str | None = None
    set: list[str] = field(default_factory=list)
    set_file: list[str] = field(default_factory=list)
    select: str | None = None
    ignore: str | None = None
    fix: bool = False
    unsafe_fixes: bool = False
    diff: bool = False
    deep: bool = False


def options_of(arguments: Sequence[str]) -> Options:
    """Parse the command line; misuse is printed, exit 2. Paths alone, the usual case, need no
    parser: to load argparse takes 2 % of a check."""
    if arguments and not any(word.startswith("-") or "=" in word for word in arguments):
        return Options(files=[Path(word) for word in arguments])
    mine = parser()
    options = Options(**vars(mine.parse(arguments)))
    if options.stdin and (len(options.files) > 1 or options.fix or options.diff):
        mine.error("--stdin has no file to change: leave out --fix")
    if not options.stdin and not options.files:
        mine.error("name a FILE or a folder, or --stdin")
    return options


def parser() -> Parser:
    from forgedsl.cli.parser import Parser, with_examples

    about = "Check .forge files, as written and under each of their profiles."
    parser = Parser("lint", with_examples(about, __doc__), "FILE ...", num_words=None)
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="a file or a folder")
    add("--stdin", action="store_true", help="check standard input as the text of FILE")
    parser.add_words("format", FORMATS, "full", help="how findings are shown")
    add("--profile", help="check this profile only; `none`: only the file as written")
    add("--set", action="append", default=[], metavar="a.b=v", help=SET_HELP)
    add(
        "--set-file",
        action="append",
        default=[],
        metavar="FILE",
        help="overrides from TOML, YAML or JSON",
    )
    add("--select", metavar="CODES", help="report only these codes or prefixes, or ALL")
    add("--ignore", metavar="CODES", help="leave out these warnings and infos")
    add("--fix", action="store_true", help="apply the safe fixes")
    add("--unsafe-fixes", action="store_true", help="with --fix or --diff: all fixes")
    add("--diff", action="store_true", help="print what --fix would change, change nothing")
    add("--deep", action="store_true", help="also call rewards, play environments, read data, "
                                            "inspect this host")  # fmt: skip
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code. With `--format json`, a failure is printed as
    JSON too."""
    try:
        return _main(arguments)
    except BrokenPipeError:
        raise
    except BaseException as error:
        _print_failure(arguments, error)
        raise


def _print_failure(arguments: Sequence[str], error: BaseException, why: str = "") -> None:
    """With `--format json`, print a JSON document about a check that failed to run."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    wanted = [after for word, after in pairwise(words) if word == "--format"]
    asked_for_help = isinstance(error, SystemExit) and error.code != 2
    if asked_for_help or not wanted or wanted[-1] != "json":
        return
    from forgedsl.report.json import failure

    kinds = {SystemExit: "usage", KeyboardInterrupt: "interrupted"}
    kind = kinds.get(type(error), "internal")
    texts = {"usage": "the command line is wrong, see stderr", "interrupted": "interrupted"}
    text = why or texts.get(kind) or f"{type(error).__name__}: {error}"
    print(failure(kind, text))


def _main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    from forgedsl.lint.config import ConfigError

    try:
        return _run(options)
    except ConfigError as error:
        print(f"forgec lint: {error}", file=sys.stderr)
        _print_failure(arguments, SystemExit(2), str(error))
        return 2


def _run(options: Options) -> int:
    diagnostics: list[Diagnostic] = []
    sources: dict[str, SourceFile] = {}
    data_reports: dict[str, None] = {}
    paths = options.files or [Path(STDIN)] if options.stdin else expand(options.files, "lint")
    changed = 0
    for path in paths:
        config = _config(path, options)
        if options.fix or options.diff:
            changed += _fix(path, options, config)
        if not options.diff:
            check = _lint_deep if options.deep else _lint
            result = check(path, options, config)
            diagnostics += result.diagnostics
            sources |= result.sources
            data_reports |= dict.fromkeys(result.data_reports)
    if options.diff:
        return 1 if changed else 0
    _print(diagnostics, sources, options.format, len(paths))
    if data_reports:  # in other formats, programs parse stdout: findings only
        print("\n".join(data_reports), file=sys.stdout if options.format == "full" else sys.stderr)
    if options.deep:
        _tell_sandbox(sources)
    if any(d.code == UNREADABLE for d in diagnostics):
        return 2
    return 1 if any(d.severity == "error" for d in diagnostics) else 0


def _tell_sandbox(sources: dict[str, SourceFile]) -> None:
    """Print which isolation this host offers for code that rewards execute."""
    from forgedsl_runtime import sandbox

    for source in sources.values():
        if sandbox.MARK in source.text:
            try:
                text = sandbox.description()
            except sandbox.SandboxError as error:
                text = str(error)
            print(f"note: {source.name}: {text}", file=sys.stderr)


def _config(path: Path, options: Options) -> Config:
    """Return the configuration of a file; the command line overrides pyproject.toml."""
    from forgedsl.lint.config import checked, load
    from forgedsl.records import replace

    config = load(path)
    if options.select is not None:
        config = replace(config, select=_codes(options.select))
    if options.ignore is not None:
        config = replace(config, ignore=_codes(options.ignore))
    if options.deep:
        missing = () if "P210" in config.warn else ("P210",)
        config = replace(config, extra=frozenset({"D608"}), error=(*config.error, *missing))
    return checked(config)


def _codes(text: str) -> tuple[str, ...]:
    return tuple(code.strip() for code in text.split(",") if code.strip())


def _lint_deep(path: Path, options: Options, config: Config) -> Linted:
    """Lint with `--deep`, which loads PyTorch, reads data and calls rewards."""
    from forgedsl.cli.waiting import waiting

    with waiting(f"checking {path}: its data, rewards and environments"):
        return _lint(path, options, config)


def _lint(path: Path, options: Options, config: Config) -> Linted:
    from forgedsl.lint.engine import lint_file

    deep = None
    if options.deep:
        from forgedsl.cli.data_checks import InputChecker
        from forgedsl.cli.host import detect_host
        from forgedsl.lint.engine import Deep
        from forgedsl.sizes.hosts import Host

        checker = InputChecker()
        deep = Deep(host=Host(**detect_host()), outside=checker, calls=checker.calls)
    layers: dict[str, Any] = {"overrides": options.set, "set_files": options.set_file}
    if options.stdin:
        from forgedsl.diagnostics import Reporter
        from forgedsl.lint.engine import Linted, lint_source
        from forgedsl.syntax import decode

        reporter = Reporter()
        source = decode(sys.stdin.buffer.read(), str(path), reporter)
        if source is None:
            return Linted(diagnostics=tuple(reporter), sources={})
        config = config.for_file(path)
        return lint_source(
            source, path.parent, profile=options.profile, config=config, deep=deep, on_disk=True,
            **layers,
        )  # fmt: skip
    return lint_file(path, profile=options.profile, config=config, deep=deep, **layers)


def _fix(path: Path, options: Options, config: Config) -> int:
    """Apply or show the fixes of one file; return their number."""
    from forgedsl.diagnostics import Reporter
    from forgedsl.lint import fixes
    from forgedsl.lint.engine import lint_source
    from forgedsl.syntax import read_source

    source = read_source(path, str(path), Reporter())
    if source is None:
        return 0
    config = config.for_file(path)

    def check(current: SourceFile) -> tuple[Diagnostic, ...]:
        return lint_source(
            current,
            path.parent,
            on_disk=True,
            profile=options.profile,
            overrides=options.set,
            set_files=options.set_file,
            config=config,
        ).diagnostics

    fixed = fixes.settle(source, check, unsafe=options.unsafe_fixes)
    if options.diff:
        print(fixes.difference(str(path), source.text, fixed.text), end="")
    elif fixed.count:
        fixes.write(path, fixed.text)
        print(f"{path}: {counted(fixed.count, 'fix')} applied", file=sys.stderr)
    return fixed.count


def _print(
    diagnostics: list[Diagnostic], sources: dict[str, SourceFile], format_: str, num_files: int
) -> None:
    if format_ == "full" and not diagnostics:
        print(summary([], num_files))
        return
    from forgedsl.report import render_as
    from forgedsl.report.style import style_for

    text = render_as(format_, diagnostics, sources, style_for(sys.stdout))
    if format_ == "full":
        text = f"{text}\n\n{summary(diagnostics, num_files)}"
    if text:
        print(text)


def summary(diagnostics: list[Diagnostic], num_files: int) -> str:
    """`2 errors (1 fixed by --fix, 1 fixed by --fix --unsafe-fixes)`, or `no findings`."""
    counts = {}
    for severity in ("error", "warning", "info"):
        number = sum(d.severity == severity for d in diagnostics)
        if number:
            counts[severity] = f"{number} info" if severity == "info" else counted(number, severity)
    if not counts:
        return f"{counted(num_files, 'file')}, no findings"
    fixes = [d.fix for d in diagnostics if d.fix is not None]
    safe = sum(fix.safe for fix in fixes)
    fix = "forgec lint --fix" if surface.in_python() else "--fix"
    hints = [f"{safe} fixed by {fix}"] if safe else []
    if len(fixes) > safe:
        hints.append(f"{len(fixes) - safe} fixed by {fix} --unsafe-fixes")
    return ", ".join(counts.values()) + (f" ({', '.join(hints)})" if hints else "")
