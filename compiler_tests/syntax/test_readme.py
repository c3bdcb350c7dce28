"""The example in the grammar's README is a valid program."""

import re
from pathlib import Path

from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile

README = Path(__file__).parents[2] / "grammar" / "README.md"


def test_the_example_is_clean():
    (block,) = re.findall(r"```forge\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert lint_source(SourceFile("README", block), README.parent).diagnostics == ()
