"""Rules read the modules that a run gives to a Python file, and no others."""

import pytest

from forgedsl.lint.follow.files import Files
from forgedsl.lint.follow.run import Flow
from forgedsl.lower.modules import modules_beside

TREES = {
    "beside": {"rewards/a.py": "import helper", "rewards/helper.py": "x = 1"},
    "beside the .forge file": {"rewards/a.py": "import helper", "helper.py": "x = 1"},
    "in a package": {
        "a.py": "from tools.text import same",
        "tools/__init__.py": "",
        "tools/text.py": "from .base import low",
        "tools/base.py": "low = str.lower",
    },
    "a package without a file": {"a.py": "import tools.text", "tools/text.py": "x = 1"},
    "a module of a package beside it": {
        "a.py": "import tools.text",
        "tools/text.py": "import base",
        "tools/base.py": "x = 1",
    },
    "a module that a package finds where the import began": {
        "a.py": "import tools.text",
        "tools/text.py": "import base",
        "tools/base.py": "x = 1",
        "base.py": "x = 2",
    },
    "a package and a module of one name": {
        "a.py": "import base",
        "base/__init__.py": "x = 1",
        "base.py": "x = 2",
    },
    "named like one of the standard library": {"a.py": "import random", "random.py": "x = 1"},
    "relative without a package": {"a.py": "from .b import x", "b.py": "x = 1"},
    "in a circle": {"a.py": "import b", "b.py": "import c", "c.py": "import b"},
}


@pytest.mark.parametrize("name", TREES)
def test_lint_and_run_find_the_same_modules(name, tmp_path):
    for path, text in TREES[name].items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text + "\n", "utf-8")
    first = next(iter(TREES[name]))
    beside = modules_beside(tmp_path / first).values()
    wanted = {first, *(str(path.relative_to(tmp_path)) for path in beside)}
    assert Files(tmp_path).imported(first) == wanted


def test_a_run_is_cut_in_a_long_chain_of_elif(tmp_path):
    chain = "".join(f"    elif text == '{n}':\n        return {n}\n" for n in range(900))
    body = f"def score(text):\n    if text == '':\n        return 0\n{chain}"
    (tmp_path / "a.py").write_text(body, "utf-8")
    file = Files(tmp_path).read("a.py")
    run = Flow(file)
    run.call(file.functions["score"], {})
    assert run.is_cut
