"""Operations are known by name to their units alone (docs/design/house.md). This count only sinks.

Counted: a comparison with the `op` of a node, `graph.of("...")`, tables by operation, nodes made by
name, and spans of a log that are asked for by name.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from forgedsl.operations.registry import OPERATIONS

ROOT = Path(__file__).parents[2]
UNITS = ("forgedsl/operations", "runtime/forgedsl_runtime/operations")
NAMES = {e.name for e in OPERATIONS} | {f.method for e in OPERATIONS for f in e.forms if f.method}

OTHER = {
    "forgedsl/graph/dataflow.py": 2,  # names of settings
    "forgedsl/sim/calibrate.py": 2,  # names of estimated times
    "forgedsl/sim/estimate.py": 2,
    "runtime/forgedsl_runtime/environments/process.py": 1,  # what an environment is asked
    "runtime/forgedsl_runtime/services/trainer.py": 2,  # endpoints of the trainer's actor
}
"""words of other vocabularies that happen to be the same"""
LEFT = {
    # spans of a log: calibration and report measure sampling, scoring and steps one by one
    "forgedsl/runs/data.py": 3,
    "forgedsl/runs/timeline.py": 1,
    "forgedsl/runs/verdict.py": 1,
    "forgedsl/sim/calibrate.py": 7,
    # methods of a program that is written in Python
    "runtime/forgedsl_runtime/api/handles.py": 9,
    "runtime/forgedsl_runtime/api/program.py": 5,
}
MOST = 30
KNOWN = {path: OTHER.get(path, 0) + LEFT.get(path, 0) for path in OTHER | LEFT}


def test_operations_are_named_in_their_units_alone() -> None:
    found = Counter(path for path, _ in places())
    assert {path: found[path] for path in found if found[path] > KNOWN.get(path, 0)} == {}


def test_the_list_of_what_is_left_is_true() -> None:
    found = Counter(path for path, _ in places())
    assert {path: found[path] for path in KNOWN if found[path] < KNOWN[path]} == {}
    assert sum(LEFT.values()) < MOST


@cache
def places() -> tuple[tuple[str, int], ...]:
    """(file, line) of each use of a name of an operation."""
    return tuple(_places())


def _places() -> Iterator[tuple[str, int]]:
    for folder in ("forgedsl", "runtime"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(UNITS):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                yield from ((name, getattr(node, "lineno", 0)) for _ in words(node))


def words(node: ast.AST) -> Iterator[str]:
    """The names of operations in one expression, if it is one that goes by them."""
    match node:
        case ast.Compare():
            sides = (node.left, *node.comparators)
            if any(_is_operation(side) for side in sides):
                yield from (w for side in sides for w in _constants(side))
        case ast.Call(func=ast.Attribute(attr="of"), args=args):
            yield from (w for arg in args for w in _constants(arg))
        case ast.Call(func=ast.Name(id="after_start"), args=[_, kind]):
            yield from _constants(kind)
        case ast.Call(func=ast.Attribute(attr="node"), args=[_, op, *_]):
            yield from _constants(op)
        case ast.Subscript(value=ast.Attribute(attr="spans"), slice=kind):
            yield from _constants(kind)
        case ast.Dict(keys=keys):
            yield from _table([key for key in keys if key is not None])
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            yield from _table(items)


def _is_operation(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "op") or (
        isinstance(node, ast.Name) and node.id == "op"
    )


def _constants(node: ast.expr) -> list[str]:
    items = node.elts if isinstance(node, ast.Tuple | ast.Set | ast.List) else [node]
    return [str(i.value) for i in items if isinstance(i, ast.Constant) and i.value in NAMES]


def _table(items: list[ast.expr]) -> list[str]:
    """A table that has two of them or more."""
    found = [word for item in items for word in _constants(item) if isinstance(item, ast.Constant)]
    return found if len(found) > 1 else []


def test_replay_is_taken_out_in_four_files(tmp_path: Path) -> None:
    """Without the units of `put` and `recall`, and without their names in two registries, the rest
    lints, plans, builds the same job and simulates; a flow that replays is refused."""
    for name in ("forgedsl", "runtime", "grammar", "pipelines"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for side in UNITS:
        folder = tmp_path / side
        (folder / "recall.py").unlink()
        registry = folder / "registry.py"
        text = registry.read_text(encoding="utf-8")
        text = re.sub(r"\*recall\.OPERATIONS,|(?<=, )recall, |^    recall,\n", "", text, flags=re.M)
        registry.write_text(text, encoding="utf-8")
        assert "recall" not in text
    mine, theirs = (forgec(tree, "build", "pipelines/grpo_math.forge", "--profile", "cpu",
                           "--emit", "job,python", "-o", str(tmp_path / f"out{i}"))
                    for i, tree in enumerate((tmp_path, ROOT)))  # fmt: skip
    assert (mine.returncode, theirs.returncode) == (0, 0), mine.stderr
    for name in ("job.json", "main.py"):
        assert (tmp_path / "out0" / name).read_text() == (tmp_path / "out1" / name).read_text()
    simulated = forgec(
        tmp_path, "sim", "pipelines/grpo_math.forge", "--profile", "cpu", "--steps", "3"
    )
    assert simulated.returncode == 0, simulated.stderr
    refused = forgec(tmp_path, "lint", "pipelines/replay_math.forge")
    assert (refused.returncode, "buffer" in refused.stdout) == (1, True)


def forgec(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`forgec` of a tree, in that tree."""
    env = {**os.environ, "PYTHONPATH": f"{tree}:{tree}/runtime"}
    return subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *words], cwd=tree, capture_output=True,
        text=True, timeout=120, check=False, env=env,
    )  # fmt: skip
