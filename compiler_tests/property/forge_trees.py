"""Random trees of the language (Hypothesis), without spans and without meaning."""

from dataclasses import fields, is_dataclass

from hypothesis import strategies as st

from forgedsl.schema.builtins import RESERVED
from forgedsl.source import NO_SPAN
from forgedsl.syntax import ast
from forgedsl.syntax.build import UNITS

OPERATORS = ("or", "and", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "**")


def node(cls, **parts):
    """A strategy of nodes; strategies among `parts` are drawn, anything else is constant."""
    drawn = {k: v if isinstance(v, st.SearchStrategy) else st.just(v) for k, v in parts.items()}
    names = {f.name for f in fields(cls)}
    spans = {n: st.just(NO_SPAN) for n in names if n == "span" or n.endswith("_span")}
    return st.builds(cls, **spans, **drawn)


def tuples(inner, least=0, most=4):
    return st.lists(inner, min_size=least, max_size=most).map(tuple)


names = st.text("abcdefgh_", min_size=1, max_size=12).filter(lambda n: n not in RESERVED)
paths = node(ast.Path, parts=tuples(names, 1, 3))
words = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=20)
strings = node(ast.String, value=words)
literals = st.one_of(
    paths,
    node(ast.Integer, value=st.integers(0, 10**12)),
    node(ast.Bool, value=st.booleans()),
    node(ast.NoneLiteral),
    st.floats(1e-30, 1e30).map(
        lambda value: ast.Number(value=float(f"{value:.6e}"), text=f"{value:.6e}", span=NO_SPAN)
    ),
    st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNITS))).map(
        lambda pair: ast.Quantity(
            value=pair[0] * UNITS[pair[1]], unit=pair[1], text=f"{pair[0]}{pair[1]}", span=NO_SPAN
        )
    ),
    strings,
)


def compound(inner):
    args = tuples(node(ast.Arg, name=st.none() | names, value=inner))
    return st.one_of(
        node(ast.Binary, operator=st.sampled_from(OPERATORS), left=inner, right=inner),
        node(ast.Unary, operator=st.sampled_from(["-", "+", "not"]), operand=inner),
        node(ast.Conditional, then=inner, test=inner, otherwise=inner),
        node(ast.Call, function=paths, args=args),
        node(ast.List, items=tuples(inner)),
        st.builds(indexed, paths, st.lists(names | inner, min_size=1, max_size=3)),
    )


def indexed(path, keys):
    """`a.b[KEY].name`; the first key is always in brackets."""
    found = path
    for key in keys:
        dotted = isinstance(key, str) and found is not path
        key = ast.String(value=key, span=NO_SPAN) if isinstance(key, str) else key
        found = ast.Index(base=found, key=key, dotted=dotted, span=NO_SPAN)
    return found


expressions = st.recursive(literals, compound, max_leaves=25)
small = st.recursive(literals, compound, max_leaves=5)
calls = node(ast.Call, function=paths, args=tuples(node(ast.Arg, name=st.none(), value=small)))
axes = node(ast.Path, parts=st.sampled_from([("B",), ("T",), ("G",)]))
types = st.recursive(
    node(ast.NamedType, name=names)
    | node(ast.TensorType, axes=tuples(axes, 1, 2), dtype=names, diff=st.booleans()),
    lambda inner: node(ast.GenericType, name=names, args=tuples(inner, 1, 2)),
    max_leaves=3,
)


def blocks(items):
    return node(ast.Block, items=tuples(items, 0, 5))


requires = node(ast.Require, test=small, message=st.none() | words)
plain_items = st.one_of(
    node(ast.Assign, path=paths, value=small),
    node(ast.TypedAssign, name=names, type=types, value=small),
    requires,
    node(ast.Return, value=small),
    node(ast.Minimize, value=small),
    node(ast.Report, name=names, value=small),
    node(ast.Effect, call=calls),
)
items = st.recursive(
    plain_items,
    lambda inner: (
        node(
            ast.Nested,
            name=names,
            label=st.none() | names,
            when=st.none() | small,
            block=blocks(inner),
        )
        | node(ast.Sync, source=paths, target=paths, block=st.none() | blocks(inner))
    ),
    max_leaves=6,
)
function_fields = node(ast.Field, name=names, type=types, default=st.none() | small)
declarations = st.one_of(
    node(
        ast.ImportForge,
        target=words,
        alias=st.none() | names,
        args=tuples(node(ast.Arg, name=names, value=small)),
    ),
    node(ast.ImportPython, target=words, alias=st.none() | names),
    node(ast.Param, name=names, type=types, default=st.none() | small),
    requires,
    node(
        ast.FnDecl,
        kind=names,
        name=names,
        fields=tuples(function_fields, 0, 7),
        result=st.none() | types,
        body=small,
        settings=st.none() | blocks(items),
    ),
    node(
        ast.FnDecl,
        kind=names,
        name=names,
        fields=tuples(function_fields, 0, 7),
        result=st.none() | types,
        body=blocks(items),
    ),
    node(ast.BindDecl, kind=names, name=names, value=small, settings=st.none() | blocks(items)),
    node(
        ast.BlockDecl,
        kind=names,
        name=st.none() | names,
        ctor=st.none() | paths | calls,
        when=st.none() | small,
        block=blocks(items),
    ),
    node(ast.Assign, path=paths, value=small),
)
files = node(
    ast.File,
    edition=st.none() | node(ast.Edition, number=st.integers(1, 9)),
    decls=tuples(declarations, 1, 6),
)


def without_spans(value):
    """Names and values of a tree, to compare."""
    if isinstance(value, tuple):
        return tuple(without_spans(item) for item in value)
    if is_dataclass(value):
        found = {f.name: without_spans(getattr(value, f.name)) for f in fields(value)}
        kept = {k: v for k, v in found.items() if k != "span" and not k.endswith("_span")}
        return (type(value).__name__, kept)
    return value
