"""parse(print(expression)) = expression, for random expressions."""

import os
from dataclasses import fields, is_dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from forgedsl.diagnostics import Reporter
from forgedsl.schema.builtins import RESERVED
from forgedsl.source import NO_SPAN, SourceFile
from forgedsl.syntax import ast, parse_value
from forgedsl.syntax.build import UNITS

DEEP = os.environ.get("FORGE_DEEP") == "1"
PRECEDENCE = {"or": 1, "and": 2, "==": 4, "!=": 4, "<=": 4, ">=": 4, "<": 4, ">": 4,
              "+": 6, "-": 6, "*": 7, "/": 7, "%": 7, "**": 9}  # fmt: skip

names = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(
    lambda name: name not in RESERVED
)
paths = st.lists(names, min_size=1, max_size=3).map(
    lambda parts: ast.Path(parts=tuple(parts), span=NO_SPAN)
)
literals = st.one_of(
    paths,
    st.integers(0, 10**12).map(lambda value: ast.Integer(value=value, span=NO_SPAN)),
    st.booleans().map(lambda value: ast.Bool(value=value, span=NO_SPAN)),
    st.just(ast.NoneLiteral(span=NO_SPAN)),
    st.floats(1e-30, 1e30).map(
        lambda value: ast.Number(value=float(f"{value:.6e}"), text=f"{value:.6e}", span=NO_SPAN)
    ),
    st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNITS))).map(
        lambda pair: ast.Quantity(
            value=pair[0] * UNITS[pair[1]], unit=pair[1], text=f"{pair[0]}{pair[1]}", span=NO_SPAN
        )
    ),
    st.text(st.characters(blacklist_categories=("Cs", "Cc"))).map(
        lambda value: ast.String(value=value, span=NO_SPAN)
    ),
)


def compound(inner):
    args = st.lists(
        st.builds(
            lambda name, value: ast.Arg(name=name, value=value, span=NO_SPAN),
            st.none() | names,
            inner,
        ),
        max_size=3,
    ).map(tuple)
    return st.one_of(
        st.builds(
            lambda op, a, b: ast.Binary(operator=op, left=a, right=b, span=NO_SPAN),
            st.sampled_from(sorted(PRECEDENCE)),
            inner,
            inner,
        ),
        st.builds(
            lambda op, a: ast.Unary(operator=op, operand=a, span=NO_SPAN),
            st.sampled_from(["-", "+", "not"]),
            inner,
        ),
        st.builds(
            lambda a, t, b: ast.Conditional(then=a, test=t, otherwise=b, span=NO_SPAN),
            inner,
            inner,
            inner,
        ),
        st.builds(lambda f, a: ast.Call(function=f, args=a, span=NO_SPAN), paths, args),
        st.lists(inner, max_size=3).map(lambda items: ast.List(items=tuple(items), span=NO_SPAN)),
        st.builds(lambda p, k: ast.Index(base=p, key=k, span=NO_SPAN), paths, inner),
    )


expressions = st.recursive(literals, compound, max_leaves=25)


def show(node):
    """Source text, every compound operand in parentheses."""
    match node:
        case ast.Path():
            return node.text
        case ast.Integer():
            return str(node.value)
        case ast.Number() | ast.Quantity():
            return node.text
        case ast.Bool():
            return str(node.value).lower()
        case ast.NoneLiteral():
            return "none"
        case ast.String():
            return '"' + node.value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case ast.Unary():
            return f"{node.operator} {operand(node.operand)}"
        case ast.Binary():
            return f"{operand(node.left)} {node.operator} {operand(node.right)}"
        case ast.Conditional():
            return " ".join(
                (operand(node.then), "if", operand(node.test), "else", operand(node.otherwise))
            )
        case ast.List():
            return f"[{', '.join(show(item) for item in node.items)}]"
        case ast.Index():
            return f"{show(node.base)}[{show(node.key)}]"
        case ast.Call():
            args = (f"{a.name} = {show(a.value)}" if a.name else show(a.value) for a in node.args)
            return f"{node.function.text}({', '.join(args)})"
    raise AssertionError(node)


def operand(node):
    simple = isinstance(
        node, ast.Path | ast.Index | ast.Integer | ast.Number | ast.String | ast.Call
    )
    return show(node) if simple else f"({show(node)})"


def without_spans(node):
    if isinstance(node, tuple):
        return tuple(without_spans(item) for item in node)
    if is_dataclass(node):
        values = {f.name: without_spans(getattr(node, f.name)) for f in fields(node)}
        return (type(node).__name__, {k: v for k, v in values.items() if k != "span"})
    return node


@settings(max_examples=5_000 if DEEP else 400, deadline=None)
@given(expressions)
def test_parsing_what_was_printed_gives_the_expression_back(expression):
    reporter = Reporter()
    parsed = parse_value(SourceFile("p", show(expression)), reporter)
    assert list(reporter) == []
    assert without_spans(parsed) == without_spans(expression)
