"""Shell completion: commands, options, and names from the .forge file on the command line.

    words of the line  ->  Candidate(value, help), ...  ->  lines for bash, zsh or fish

The scripts of shells.py call `forgec` with the line in the environment; this module computes the
candidates. If there are none, the shell completes file names.

    --profile <TAB>            profiles of the file
    --set trainer.<TAB>        settings with the values in force
    explain <TAB>              codes, losses, settings
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from forgedsl.cli.commands import COMMANDS
from forgedsl.records import dataclass

VARIABLE = "_FORGEC_COMPLETE"
ROOT = ("--help", "--version", "--install-completion", "--show-completion")
OPTIONS_WITH_CODES = ("--select", "--ignore", "--error", "--warn")
COMPILING = ("plan", "build", "lock", "explain", "graph", "sim", "run", "sweep")
"""commands that take one .forge file; further words are overrides"""
OPTIONS_WITH_RUN = ("--resume", "--against")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word that may stand at the cursor; zsh and fish show `help` beside it."""

    value: str
    help: str = ""


def main(environment: Mapping[str, str]) -> int:
    """Answer the shell whose request is in `environment`; the result is the exit code."""
    shell = environment[VARIABLE].rpartition("_")[2]
    words, at = _line(shell, environment)
    found = [c for c in candidates(words, at) if c.value.startswith(_typed(words, at))]
    if shell == "fish" and environment.get("_FORGEC_FISH") == "is-args":
        return 0 if found else 1
    print(_answer(shell, found))
    return 0


def _line(shell: str, environment: Mapping[str, str]) -> tuple[list[str], int]:
    """The words of the line without `forgec`, and the index of the one at the cursor."""
    if shell == "bash":
        words = environment["COMP_WORDS"].split("\n")
        return words[1:], int(environment["COMP_CWORD"]) - 1
    text = environment.get("_FORGEC_ARGUMENTS", "")
    words = text.split()[1:] + ([""] if text.endswith(" ") else [])
    return words, len(words) - 1


def _typed(words: Sequence[str], at: int) -> str:
    """Return the part of the candidate that is already typed. bash splits the line at `=`."""
    word = words[at] if at < len(words) else ""
    return "" if word == "=" else word


def _answer(shell: str, found: Iterable[Candidate]) -> str:
    if shell == "fish":
        return "\n".join(f"{c.value}\t{c.help}" if c.help else c.value for c in found)
    if shell != "zsh":
        return "\n".join(c.value for c in found)
    lines = [f'"{_zsh(c.value)}":"{_zsh(c.help)}"' if c.help else f'"{_zsh(c.value)}"'
             for c in found]  # fmt: skip
    return f"_arguments '*: :(({chr(10).join(lines)}))'" if lines else "_files"


def _zsh(text: str) -> str:
    for old, new in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", "\\\\:")):
        text = text.replace(old, new)
    return text


# ---- candidates at the cursor


def candidates(words: Sequence[str], at: int) -> list[Candidate]:
    """Return all candidates for word `at`, whatever part of it is typed already."""
    before = list(words[:at])
    word = words[at] if at < len(words) else ""
    command = next((w for w in before if not w.startswith("-")), None)
    if command is None:
        if word.startswith("-"):
            return [Candidate(name) for name in ROOT]
        return [Candidate(name, summary) for name, _, summary in COMMANDS]
    if command not in {name for name, _, _ in COMMANDS}:
        return []
    files = _files(words)
    key = _key(before, word)
    if key is not None:
        return [Candidate(value) for value in _values(key, files)]
    return _of_command(command, before[before.index(command) + 1 :], word, files)


def _key(before: Sequence[str], word: str) -> str | None:
    """Return the setting whose value is at the cursor. bash splits the line at `=`."""
    if word == "=" and before:
        return before[-1]
    return before[-2] if len(before) > 1 and before[-1] == "=" else None


def _of_command(
    command: str, before: Sequence[str], word: str, files: Sequence[Path]
) -> list[Candidate]:
    from forgedsl.cli.options import options_of

    options = options_of(command)
    if before and before[-1].startswith("-"):
        taken = next((o for o in options if before[-1] in o.names and o.value), None)
        if taken is not None:
            return _of_option(before[-1], taken.choices, files)
    if word.startswith("--") and "." in word:
        return [Candidate(f"--{c.value}", c.help) for c in _settings(files)]
    if word.startswith("-"):
        return [Candidate(name, option.help) for option in options for name in option.names]
    return _of_argument(command, before, files)


def _of_option(name: str, choices: Sequence[str], files: Sequence[Path]) -> list[Candidate]:
    """Return candidates for the value of an option."""
    if choices:
        return [Candidate(choice) for choice in choices]
    if name == "--profile":
        return [Candidate("none", "the file as written"), *_profiles(files)]
    if name == "--set":
        return _settings(files)
    if name == "--template":
        from forgedsl.templates import TEMPLATES

        return [Candidate(name, template.about) for name, template in TEMPLATES.items()]
    if name in OPTIONS_WITH_CODES:
        return _codes()
    return _runs() if name in OPTIONS_WITH_RUN else []


def _of_argument(command: str, before: Sequence[str], files: Sequence[Path]) -> list[Candidate]:
    """Return candidates for an argument; none for a file name."""
    has_argument = any(not word.startswith("-") for word in before)
    if command in COMPILING and any(word.endswith(".forge") for word in before):
        return _settings(files)
    if command == "compare":
        return _runs()
    if command in ("report", "replay", "export", "try", "calibrate") and not has_argument:
        return _runs()
    if command == "explain" and not has_argument:
        return [*_codes(), *_standard(), *_paths(files)]
    if command == "doc" and not has_argument:
        from forgedsl.cli.reference import REFERENCES
        from forgedsl.hir.modules import standard_modules
        from forgedsl.schema import ALL_KINDS

        names = [*REFERENCES, *standard_modules(), *ALL_KINDS]
        return [*map(Candidate, names), *_standard(), *_codes(), *_in_folder()]
    return []


# ---- names in files, and names that the compiler knows


def _files(words: Sequence[str]) -> list[Path]:
    """Return the .forge file on the line, else those of the current folder."""
    named = [Path(word) for word in words if word.endswith(".forge") and Path(word).is_file()]
    return named or sorted(Path().glob("*.forge"))


def _in_folder() -> list[Candidate]:
    return [Candidate(str(path)) for path in sorted(Path().glob("*.forge"))]


def _profiles(files: Sequence[Path]) -> list[Candidate]:
    from forgedsl.ide.outline import symbols
    from forgedsl.ide.workspace import Workspace

    found: dict[str, Candidate] = {}
    for path in files:
        for symbol in symbols(Workspace().document(path)):
            if symbol.kind == "profile":
                found[symbol.name] = Candidate(symbol.name, symbol.doc)
    return list(found.values())


def _settings(files: Sequence[Path]) -> list[Candidate]:
    """Return every setting with its current value, ready to be edited: `trainer.procs=4`."""
    from forgedsl import api
    from forgedsl.explain.provenance import addresses

    found: dict[str, Candidate] = {}
    for path in files:
        program = api.load(path, profile="none").program
        for address in addresses(program) if program is not None else ():
            value = "" if " " in address.value else address.value
            text = f"{address.path}={value}"
            found.setdefault(address.path, Candidate(text, address.doc))
    return list(found.values())


def _values(key: str, files: Sequence[Path]) -> list[str]:
    """Return the values of a setting: the words it accepts, else its current value."""
    from forgedsl import api
    from forgedsl.explain.provenance import addresses
    from forgedsl.ide.complete import values_of
    from forgedsl.ide.workspace import Workspace

    for path in files:
        known = [name.name for name in values_of(Workspace().document(path), key)]
        if known:
            return known
        program = api.load(path, profile="none").program
        for address in addresses(program) if program is not None else ():
            if address.path == key:
                return [address.value]
    return []


def _paths(files: Sequence[Path]) -> list[Candidate]:
    from forgedsl import api
    from forgedsl.explain.provenance import addresses

    found: dict[str, Candidate] = {}
    for path in files:
        program = api.load(path, profile="none").program
        for address in addresses(program) if program is not None else ():
            if address.owner:
                found.setdefault(address.owner, Candidate(address.owner, "all its settings"))
            found.setdefault(address.path, Candidate(address.path, address.doc))
    return list(found.values())


def _codes() -> list[Candidate]:
    from forgedsl.explain.codes import pages

    return [Candidate(page.code, page.name) for page in pages().values()]


def _standard() -> list[Candidate]:
    from forgedsl import api

    functions, _ = api.load_functions("std/rl")
    return [Candidate(name, f.doc.partition("\n")[0]) for name, f in functions.items()]


def _runs() -> list[Candidate]:
    folders = sorted(Path("runs").glob("*/"), reverse=True) if Path("runs").is_dir() else []
    return [Candidate(str(path)) for path in folders if (path / "job.json").exists()]
