"""Accidents on record as small edits of shipped pipelines: `*.md` beside this file.

## CODE: what is wrong            the code of the one message that is wanted
## what is right                  in `right/*.md`, where none is wanted
on PIPELINE
- text of the pipeline            replaced, where it stands, by the `+ ` lines after it
+ other text
```python NAME                    a file beside the program
"""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile

FOLDER = Path(__file__).parent
PIPELINES = FOLDER.parents[1] / "pipelines"
FILES = re.compile(r"^```python (\S+)\n(.*?)^```$", re.S | re.M)
EDIT = re.compile(r"((?:^- .*\n)+)((?:^\+.*\n)*)", re.M)


@dataclass(frozen=True)
class Accident:
    name: str
    code: str
    pipeline: str
    is_open: bool
    text: str
    files: tuple[tuple[str, str], ...]


def accidents():
    """All of them."""
    return [
        _accident(path, section)
        for path in sorted(FOLDER.glob("*.md"))
        for section in sections(path)
    ]


def right():
    """Programs that look like accidents, and are none."""
    paths = sorted((FOLDER / "right").glob("*.md"))
    return [_accident(path, f": {section}") for path in paths for section in sections(path)]


def sections(path):
    return path.read_text("utf-8").split("\n## ")[1:]


def _accident(path, section):
    head, _, body = section.partition("\n")
    code, _, what = head.partition(": ")
    pipeline = re.search(r"^on (\w+)$", body, re.M)[1]
    files = tuple(FILES.findall(body))
    text = (PIPELINES / f"{pipeline}.forge").read_text("utf-8")
    for old, new in EDIT.findall(FILES.sub("", body) + "\n"):
        old, new = (re.sub(r"^[-+] ?", "", side, flags=re.M)[:-1] for side in (old, new))
        assert old in text, f"{head}: {old}"
        text = text.replace(old, new)
    is_open = re.search("^open$", body, re.M) is not None
    return Accident(f"{path.stem}: {code} {what}", code, pipeline, is_open, text, files)


def found(text, files=()):
    """(code, severity, message) of everything but information, in a text beside the pipelines."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in PIPELINES.iterdir():
            (folder / path.name).symlink_to(path)
        for name, content in files:
            (folder / name).write_text(content, "utf-8")
        source = SourceFile(str(folder / "t.forge"), text)
        result = lint_source(source, folder, on_disk=True)
    return [
        (d.code, str(d.severity), d.message) for d in result.diagnostics if d.severity != "info"
    ]


if __name__ == "__main__":
    import sys

    caught = 0
    cases = right() if "right" in sys.argv else accidents()
    for case in cases:
        messages = found(case.text, case.files)
        wanted = {case.code} - {""}
        caught += {code for code, _, _ in messages} == wanted
        if {code for code, _, _ in messages} != wanted and "-q" not in sys.argv:
            print(case.name, "->", messages or "silence")
    print(f"{caught} of {len(cases)}")
