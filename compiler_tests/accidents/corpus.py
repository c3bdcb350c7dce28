"""Accidents on record, and right programs, as small edits of shipped pipelines.

`*.md`: accidents of several lines, in `right/` programs that look like some and are none

    ## CODE: what is wrong            the code of the one message that is wanted
    ## what is right                  where none is wanted
    on PIPELINE
    - text of the pipeline            replaced, wherever it stands, by the `+ ` lines after it
    + other text
    deep                              with --deep, which reads rows
    open                              nothing tells it yet: the heading is `open: what is wrong`
    ```python NAME                    a file beside the program, or jsonl

`unseen/`: programs in the first form that no rule was made with, with their source and what a good
checker would say

`*.txt`: those of one line, `CODE PIPELINE: text => other text ;; text => other text`;
RIGHT is no code, <br> ends a line, `CODE?` is open: nothing tells it yet, and CODE is wanted
"""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from forgedsl.cli.data_checks import InputChecker
from forgedsl.lint.engine import Deep, lint_source
from forgedsl.sizes.hosts import Host
from forgedsl.source import SourceFile

FOLDER = Path(__file__).parent
PIPELINES = FOLDER.parents[1] / "pipelines"
FILES = re.compile(r"^```(?:python|jsonl) (\S+)\n(.*?)^```$", re.S | re.M)
EDIT = re.compile(r"((?:^- .*\n)+)((?:^\+.*\n)*)", re.M)
NOTHING = "RIGHT"


@dataclass(frozen=True)
class Program:
    """`code`: the one that is given, "" where none is, and for an open program."""

    name: str
    code: str
    text: str
    is_open: bool = False
    is_deep: bool = False
    files: tuple[tuple[str, str], ...] = ()


def accidents():
    """All of them."""
    return [*_long(FOLDER), *_short(FOLDER)]


def right():
    """Programs that are as good as the pipelines they were made of."""
    return [*_long(FOLDER / "right"), *_short(FOLDER / "right")]


def unseen():
    """Programs that no rule was made with, wrong ones and their twins."""
    return _long(FOLDER / "unseen")


def pipeline(name):
    return (PIPELINES / f"{name}.forge").read_text("utf-8")


def _long(folder):
    for path in sorted(folder.glob("*.md")):
        for section in path.read_text("utf-8").split("\n## ")[1:]:
            head, _, body = section.partition("\n")
            code = head[:4] if head[4:5] == ":" else ""
            on = re.search(r"^on (\w+)$", body, re.M)[1]
            files = tuple(FILES.findall(body))
            edits = [
                tuple(re.sub(r"^[-+] ?", "", side, flags=re.M)[:-1] for side in edit)
                for edit in EDIT.findall(FILES.sub("", body) + "\n")
            ]
            is_open, is_deep = (bool(re.search(f"^{w}$", body, re.M)) for w in ("open", "deep"))
            assert is_open == (code == "open"), head
            code = "" if is_open else code
            text = edited(pipeline(on), edits, head)
            yield Program(f"{path.stem}: {head}", code, text, is_open, is_deep, files)


def _short(folder):
    for path in sorted(folder.glob("*.txt")):
        for line in path.read_text("utf-8").splitlines():
            if not line or line.startswith("#"):
                continue
            head, _, edits = line.partition(": ")
            code, on = head.split()
            parts = [e.partition(" =>") for e in edits.replace(" <br> ", "\n").split(" ;; ")]
            pairs = [(old, new.removeprefix(" ")) for old, _, new in parts]
            is_open = code.endswith("?")
            code = "" if is_open else code.replace(NOTHING, "")
            yield Program(line, code, edited(pipeline(on), pairs, line), is_open)


def edited(text, edits, name):
    for old, new in edits:
        assert old in text, f"{name}: {old}"
        text = text.replace(old, new)
    return text


def found(text, files=(), is_deep=False):
    """(code, severity, message) of everything but information, in a text beside the pipelines."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in PIPELINES.iterdir():
            (folder / path.name).symlink_to(path)
        for name, content in files:
            (folder / name).write_text(content, "utf-8")
        source = SourceFile(str(folder / "t.forge"), text)
        checker = InputChecker()
        deep = Deep(host=Host(), outside=checker, calls=checker.calls) if is_deep else None
        result = lint_source(source, folder, on_disk=True, deep=deep)
    return [
        (d.code, str(d.severity), d.message) for d in result.diagnostics if d.severity != "info"
    ]


def is_as_wanted(program):
    """True if the wanted code is the only one; for an open program, if there is none."""
    told = found(program.text, program.files, program.is_deep)
    return {code for code, _, _ in told} == ({program.code} if program.code else set())


if __name__ == "__main__":
    import sys

    if "unseen" in sys.argv:
        for case in unseen():
            print(case.name, "->", found(case.text, case.files, case.is_deep) or "silence")
        sys.exit()
    cases = right() if "right" in sys.argv else accidents()
    if "in" in sys.argv:  # `in assurance.txt`: the programs of one file
        path = FOLDER / sys.argv[-1]
        lines = path.read_text("utf-8").splitlines()
        cases = [c for c in cases if c.name in lines or c.name.startswith(f"{path.stem}: ")]
    missed = [case for case in cases if not is_as_wanted(case)]
    for case in missed:
        print(case.name, "->", found(case.text, case.files, case.is_deep) or "silence")
    silent = [case for case in cases if case.is_open and case not in missed]
    for case in silent:
        print(case.name, "-> silence, as it says")
    print(f"{len(cases) - len(missed) - len(silent)} of {len(cases)}")
