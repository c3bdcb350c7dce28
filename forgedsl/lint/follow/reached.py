"""What the rewards and environments of a program reach in their Python files.

View -> one Part for each: the statements that run when its file is imported, its definition, and
the definitions and constants that it names, directly or through other definitions
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TypeVar

from forgedsl.lint.environments import python_environments
from forgedsl.lint.follow.files import DEFINED, File
from forgedsl.lint.follow.programs import files_of
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.types.effects import nodes_of

DEPTH = 3
"""modules that import each other are followed as far"""
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A reward, environment or agent, and the statements of its file that it reaches."""

    what: str
    """its kind and name, for messages"""
    name: str
    span: Span
    file: File
    top: str
    """the top-level definition that contains it"""
    roots: tuple[ast.stmt, ...]
    is_reward: bool
    files: tuple[File, ...]
    """all files that the reward or environment reaches, its own first"""

    def nodes(self) -> Iterator[ast.AST]:
        """Yield all nodes that it reaches."""
        for root in self.roots:
            yield from nodes_of(root)


def parts(view: View) -> tuple[Part, ...]:
    """Return the parts of a view, computed once."""
    if parts not in view.answers:
        view.answers[parts] = tuple(_parts(view))
    known: tuple[Part, ...] = view.answers[parts]
    return known


def _parts(view: View) -> Iterator[Part]:
    """Yield the rewards and environments whose files can be read, each with its own file, and with
    each module beside it of which it names something."""
    found = [
        (f"{env.what} `{env.env.name}`", env.env.name, env.env.name_span, env.env.body.module,
         env.env.body.name, False)
        for env in python_environments(view)
    ] + [
        (f"reward `{one.reward.name}`", one.reward.name, place_of(one.reward, view),
         one.function.module, one.top, True)
        for one in python_rewards(view)
    ]  # fmt: skip
    for what, name, span, module, top, is_reward in found:
        file = files_of(view).read(module)
        if file is not None:
            key = (parts, module, top)
            if key not in view.shared.answers:
                view.shared.answers[key] = tuple(_files_of(file, top))
            reached = view.shared.answers[key]
            others = tuple(each for each, _, _ in reached)
            for each, its_top, roots in reached:
                yield Part(
                    what=what, name=name, span=span, file=each, top=its_top, roots=roots,
                    is_reward=is_reward, files=others,
                )  # fmt: skip


def found_in(view: View, question: Callable[[Part], Node | None]) -> Iterator[tuple[Part, Node]]:
    """Yield (part, node) where `question(part)` returns a node. Each node is yielded once, with the
    first part that reaches it. Answers are cached for all views, so a question may only look at the
    file of the part."""
    yielded: set[int] = set()
    for part in parts(view):
        key = (question, part.file.path, part.top, part.files[0].path)
        if key not in view.shared.answers:
            view.shared.answers[key] = question(part)
        node: Node | None = view.shared.answers[key]
        if node is not None and id(node) not in yielded:
            yielded.add(id(node))
            yield part, node


def _files_of(
    file: File, top: str, depth: int = DEPTH
) -> Iterator[tuple[File, str, tuple[ast.stmt, ...]]]:
    """Yield (file, definition, statements) for what a definition reaches in its file, and in the
    modules beside it."""
    roots = tuple(_reached(file.module, top))
    yield file, top, roots
    seen = {(file.path, top)}
    for full in dict.fromkeys(_imported(file, roots)) if depth else ():
        module, _, name = full.rpartition(".")
        near = file.near(module)
        if near is not None and near.has(name):
            for each in _files_of(near, name, depth - 1):
                if (each[0].path, each[1]) not in seen:
                    seen.add((each[0].path, each[1]))
                    yield each


def _imported(file: File, roots: tuple[ast.stmt, ...]) -> Iterator[str]:
    """Yield the full names of what statements use of other modules."""
    for node in (node for root in roots for node in nodes_of(root)):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in file.imports:
                yield f"{file.imports[name]}.{attr}"
            case ast.Name(id=name, ctx=ast.Load()) if name in file.imports:
                yield file.imports[name]


def _reached(module: ast.Module, top: str) -> Iterator[ast.stmt]:
    """Yield the statements that run at import, and those that `top` reaches by name."""
    named: dict[str, list[ast.stmt]] = {}
    pending = [top]
    for node in module.body:
        names = _names_bound(node)
        for name in names:
            named.setdefault(name, []).append(node)
        if not isinstance(node, DEFINED) and not _is_script(node):
            yield node
            pending += () if names else _names_read(node)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        for node in named.get(name, ()) if name not in seen else ():
            if isinstance(node, DEFINED):
                yield node
            pending += _names_read(node)
        seen.add(name)


def _names_bound(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines, or assigns at its top."""
    if isinstance(node, DEFINED):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        nodes = (each for target in targets for each in ast.walk(target))
        return [each.id for each in nodes if isinstance(each, ast.Name)]
    return []


def _names_read(node: ast.AST) -> list[str]:
    return [n.id for n in nodes_of(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]


def _is_script(node: ast.stmt) -> bool:
    """True for `if __name__ == "__main__":`, which no run enters."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
