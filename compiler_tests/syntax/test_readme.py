"""The example in the grammar's README resolves."""

import re
from pathlib import Path

from forgedsl import api

README = Path(__file__).parents[2] / "grammar" / "README.md"


def test_the_example_resolves():
    (block,) = re.findall(r"```forge\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert list(api.load_text(block).reporter) == []
