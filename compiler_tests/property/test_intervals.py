"""Intervals and slopes are sound: sampled values of random losses lie where the analysis says."""

import math
import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.losses.forward_mode import Point
from forgedsl.losses.grad import differentiate
from forgedsl.losses.infer import infer
from forgedsl.losses.intervals import Analysis
from forgedsl.losses.source_spans import locate
from forgedsl.types.intervals import Interval, interval, point
from forgedsl.types.ops import TRANSFER

EXAMPLES = 1000 if os.environ.get("FORGE_DEEP") else 60
UNARY = (
    "-{}", "abs({})", "exp({})", "expm1({})", "log({})", "log1p({})", "sqrt({})", "sigmoid({})",
    "log_sigmoid({})", "softplus({})", "tanh({})", "stop({})", "clamp({}, -2.0, 3.0)",
    "({}) ** 2", "({}) ** 3", "sign({})",
)  # fmt: skip
BINARY = ("({} + {})", "({} - {})", "({} * {})", "({} / {})", "min({}, {})", "max({}, {})")
TESTS = ("({}) > 0.0", "({}) <= ({})", "({}) == 0.0", "is_finite({})", "({}) != 0.0")
LEAVES = ("logprob", "behavior", "entropy", "adv", "0.0", "1.0", "-0.5", "2.0")


def branches(inner):
    test = st.builds(lambda t, a, b: t.format(a, b), st.sampled_from(TESTS), inner, inner)
    both = st.builds(lambda a, b: f"({a} and {b})", test, test) | test
    return st.builds(lambda a, t, b: f"({a} if {t} else {b})", inner, both, inner)


EXPRESSIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(lambda op, a: op.format(f"({a})"), st.sampled_from(UNARY), inner),
        st.builds(lambda op, a, b: op.format(a, b), st.sampled_from(BINARY), inner, inner),
        branches(inner),
    ),
    max_leaves=10,
)
ZERO = dict.fromkeys(("logprob", "behavior", "entropy", "adv"), 0.0)
POINTS = st.fixed_dictionaries(
    {
        "logprob": st.sampled_from([0.0, -1e-3, -0.7, -3.0, -90.0, -700.0]),
        "behavior": st.sampled_from([0.0, -1e-3, -0.7, -3.0, -90.0]),
        "entropy": st.sampled_from([0.0, 0.3, 2.0, 11.0]),
        "adv": st.sampled_from([-50.0, -1.0, 0.0, 0.5, 1.0, 1000.0]),
    }
)


def loss_of(expression):
    text = (
        "loss f(logprob: diff [B, T] f32, entropy: diff [B, T] f32, behavior: [B, T] f32, "
        "adv: [B] f32, mask: [B, T] bool) {\n"
        f"  minimize token_mean(logprob * 1e-9 + {expression}, mask)\n}}\n"
    )
    return api.load_functions(text)[0]["f"]


@settings(max_examples=EXAMPLES, deadline=None)
@given(expression=EXPRESSIONS, inputs=POINTS)
def test_values_lie_in_their_intervals(expression, inputs):
    located = locate(loss_of(expression), Reporter())
    if located is None:
        return  # a constant without value, which inference reports
    tree = located.tree
    analysis = Analysis(tree.values, [tree.output("loss")])
    at = Point(tree.values, inputs)
    for node in range(len(tree.values)):
        value, known = at(node).value, analysis[node]
        assert math.isfinite(value) or not known.finite or abs(value) == math.inf
        if not math.isnan(value):
            slack = 1e-9 * max(1.0, abs(value))
            assert known.lo - slack <= value <= known.hi + slack
            assert value != 0 or not known.nonzero or underflows(tree, node)


def underflows(tree, node):
    """Whether a product of tiny factors may have vanished; intervals are of real numbers."""
    return tree.values[node].op in ("mul", "div", "pow", "sub", "sqrt")


@settings(max_examples=EXAMPLES, deadline=None)
@given(expression=EXPRESSIONS, inputs=POINTS)
def test_conditions_of_a_use_hold_where_it_is_used(expression, inputs):
    located = locate(loss_of(expression), Reporter())
    if located is None:
        return
    tree = located.tree
    analysis = Analysis(tree.values, [tree.output("loss")])
    at = Point(tree.values, inputs)
    for node, value in enumerate(tree.values):
        if not all(bool(at(c).value) == holds for c, holds in analysis.guards[node]):
            continue
        for arg in value.args:
            number, known = at(arg).value, analysis.guarded(node, arg)
            if math.isfinite(number):
                slack = 1e-9 * max(1.0, abs(number))
                assert known.lo - slack <= number <= known.hi + slack
                assert number != 0 or not known.nonzero or underflows(tree, arg)


@settings(max_examples=EXAMPLES, deadline=None)
@given(expression=EXPRESSIONS, inputs=POINTS)
@example(expression="min(logprob, 0.0)", inputs=ZERO)
@example(expression="max(logprob, behavior)", inputs=ZERO)
def test_slopes_are_those_of_the_symbolic_gradient(expression, inputs):
    tree = infer(loss_of(expression), Reporter())
    if tree is None:
        return
    gradient = differentiate(tree)
    slope = Point(tree.values, inputs)(tree.output("loss")).slope
    symbolic = Point(gradient.values, inputs)(gradient.output("logprob")).value
    if math.isfinite(slope) and math.isfinite(symbolic) and abs(slope) < 1e12:
        assert symbolic == pytest.approx(slope, rel=1e-6, abs=1e-9)


NUMBERS = st.sampled_from([-3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0, 5.0, 100.0])


@settings(max_examples=EXAMPLES * 5, deadline=None)
@given(
    op=st.sampled_from(["add", "sub", "mul", "div", "min", "max", "lt", "le", "eq", "ne", "pow"]),
    bounds=st.lists(NUMBERS, min_size=4, max_size=4),
    shares=st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=2, max_size=2),
)
def test_transfer_functions_contain_every_result(op, bounds, shares):
    from forgedsl.losses.simplify import PYTHON

    ranges = [sorted(bounds[:2]), sorted(bounds[2:])]
    args = [lo + share * (hi - lo) for (lo, hi), share in zip(ranges, shares, strict=True)]
    try:
        exact = PYTHON[op](*args)
    except (ArithmeticError, ValueError):
        return
    if isinstance(exact, complex):
        return
    found = TRANSFER[op](*(interval(lo, hi) for lo, hi in ranges))
    assert found.lo - 1e-9 * abs(exact) <= exact <= found.hi + 1e-9 * abs(exact)


def test_what_is_known_of_the_shipped_ratio():
    functions, _ = api.load_functions("std/rl")
    tree = infer(functions["ppo"], Reporter())
    analysis = Analysis(tree.values, [tree.output("loss")])
    ratio = next(n for n, value in enumerate(tree.values) if value.op == "exp")
    assert str(analysis[ratio]) == "[2.06e-09, 4.85e+08]"
    assert analysis[ratio].finite
    assert analysis[ratio].nonzero


def test_a_contradiction_stays_an_interval():
    assert Interval(1.0, 2.0) != point(1.0)
    assert TRANSFER["div"](point(1.0), Interval(0.0, 1.0)).finite is False
