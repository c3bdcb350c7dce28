"""Finds the return statements of a Python reward by reading its source, without running it."""

import ast
from functools import lru_cache

NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@lru_cache(maxsize=256)  # the same for all views of a file
def wrong(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ast.stmt | None]:
    """Return the mistake in how a reward returns its value, and where; \"\" and None without
    one."""
    nodes = _inside(definition)
    returns = [node for node in nodes if isinstance(node, ast.Return)]
    scores = {node.value.id for node in returns if isinstance(node.value, ast.Name)}
    for handler in (node for node in nodes if isinstance(node, ast.ExceptHandler)):
        for node in _inside(handler):
            if isinstance(node, ast.Return) or _gives(node, scores):
                paid = getattr(node.value, "value", 0)  # type: ignore[attr-defined]
                if isinstance(paid, int | float) and paid > 0:
                    return "gives a reward for an error", node  # type: ignore[return-value]
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes):
        return "", None
    if not any(node.value for node in returns) and not isinstance(definition.body[-1], ast.Raise):
        return "returns nothing", definition
    if not _ends(definition.body):
        return "returns nothing on some path", definition
    texts = (node for node in returns if node.value is not None and _is_text(node.value))
    if not definition.decorator_list and (text := next(texts, None)) is not None:
        return "returns a text on some path", text
    alike = {dump for node in returns for dump in _constants(node.value, nodes)}
    is_stub = len(returns) == 1 and isinstance(returns[0].value, ast.Constant)
    if len(alike) == 1 and "" not in alike and not is_stub:
        return "returns the same number on every path", returns[0]
    return "", None


def _is_text(value: ast.expr) -> bool:
    """True if a value is a text, or a condition chooses one."""
    match value:
        case ast.IfExp(body=body, orelse=other):
            return _is_text(body) or _is_text(other)
        case ast.Constant(value=constant):
            return isinstance(constant, str)
    return isinstance(value, ast.JoinedStr)


def _constants(value: ast.expr | None, nodes: list[ast.AST]) -> set[str]:
    """Return the constants that a value can be, as text; "" stands for anything else. A name can be
    what is assigned to it."""
    match value:
        case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return {ast.unparse(value)}
        case ast.IfExp(body=body, orelse=other):
            return _constants(body, nodes) | _constants(other, nodes)
        case ast.Name(id=name):
            stored = [n for n in nodes if isinstance(n, ast.Name) and n.id == name]
            given = [n for n in nodes if isinstance(n, ast.Assign) and _gives(n, {name})]
            if given and len(given) == sum(isinstance(n.ctx, ast.Store) for n in stored):
                return {text for n in given for text in _constants_once(n.value)}
    return {""}


def _constants_once(value: ast.expr) -> set[str]:
    return set() if isinstance(value, ast.Name) else _constants(value, [])


def _gives(node: ast.AST, names: set[str]) -> bool:
    """True if a statement assigns to one of these names."""
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id in names for target in node.targets
    )


def _inside(node: ast.AST) -> list[ast.AST]:
    """Return the nodes inside of a node, without nested functions."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, NESTED):
            found += [child, *_inside(child)]
    return found


def first_round(loop: ast.For | ast.AsyncFor) -> ast.Return | None:
    """Return the statement with which each round of a loop returns a constant, if a test of the
    loop's item returns another one."""
    inside = [each for stmt in loop.body for each in ast.walk(stmt)]
    if not _leaves(loop.body) or any(
        isinstance(each, ast.Continue | ast.Break | ast.Yield) for each in inside
    ):
        return None
    returned = [each for each in inside if isinstance(each, ast.Return)]
    names = _names(loop.target)
    asks = any(names & _names(each.test) for each in inside if isinstance(each, ast.If))
    if asks and len(returned) > 1 and all(map(_is_constant, returned)):
        return returned[-1]
    return None


def _leaves(body: list[ast.stmt]) -> bool:
    """True if a block always returns or raises."""
    match body[-1]:
        case ast.Return() | ast.Raise():
            return True
        case ast.If(body=then, orelse=otherwise):
            return _leaves(then) and bool(otherwise) and _leaves(otherwise)
    return False


def _is_constant(node: ast.Return) -> bool:
    value = node.value
    while isinstance(value, ast.UnaryOp):
        value = value.operand
    return isinstance(value, ast.Constant)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _ends(body: list[ast.stmt]) -> bool:
    """True if control never reaches the end of a block, or only behind a loop of which X871 reports
    that it returns in its first round."""
    match body[-1]:
        case ast.Return() | ast.Raise() | ast.While():
            return True
        case ast.For() | ast.AsyncFor() as node:
            return first_round(node) is not None
        case ast.If() as node:
            return bool(node.orelse) and _ends(node.body) and _ends(node.orelse)
        case ast.With() | ast.AsyncWith() as node:
            return _ends(node.body)
        case ast.Try() as node:
            ways = [node.orelse or node.body, *(handler.body for handler in node.handlers)]
            return bool(node.finalbody and _ends(node.finalbody)) or all(map(_ends, ways))
        case ast.Match() as node:
            return all(_ends(case.body) for case in node.cases)
    return False
