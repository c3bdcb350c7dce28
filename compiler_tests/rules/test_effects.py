"""Which calls of a reward in Python have an effect, wherever its modules are imported."""

from __future__ import annotations

import ast

import pytest

from forgedsl.types.effects import uses

BODIES = {
    "import requests\n    return requests.post('x')": "requests.post",
    "net = __import__('requests')\n    return net.post('x')": "requests.post",
    "import importlib\n    net = importlib.import_module('requests')\n    return net.post('x')":
        "requests.post",
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_a_module_imported_in_the_body_is_known(body: str) -> None:
    found = uses(ast.parse(f"def score(response):\n    {body}\n"), "score")
    assert [(use.effect, use.name) for use in found] == [("net", BODIES[body])]


def test_a_name_is_what_its_own_body_imports() -> None:
    text = (
        "def score(response):\n    import requests as r\n    return r.post('x')\n"
        "def other(response):\n    import re as r\n    return r.match('x', 'x')\n"
    )
    module = ast.parse(text)
    assert [use.name for use in uses(module, "score")] == ["requests.post"]
    assert uses(module, "other") == ()
