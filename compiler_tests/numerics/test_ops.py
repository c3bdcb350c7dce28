"""Every function of one number: all that its row says agrees with what it computes."""

import math

import pytest
import torch
from torch.nn import functional

from forgedsl.types.intervals import interval
from forgedsl.types.ops import OPS

POINTS = (-3.5, -0.7, -1e-4, 1e-4, 0.3, 2.0, 30.0)


class Numbers:
    """Operators on numbers, and functions by their rows."""

    const = staticmethod(float)
    functions = {op.name: op.python for op in OPS}  # noqa: RUF012
    operators = {  # noqa: RUF012
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b, "neg": lambda a: -a,
    }  # fmt: skip

    def __call__(self, op, *args):
        return {**self.functions, **self.operators}[op](*args)


def inside(op):
    """The points at which a function and its neighbourhood are defined."""
    low = {"log": 0.0, "sqrt": 0.0, "log1p": -1.0}.get(op.name, -math.inf)
    return [x for x in POINTS if x > low]


CASES = [(op, x) for op in OPS for x in inside(op)]


def named(each):
    """What a case is called, the same in each process."""
    return str(getattr(each, "name", each))


@pytest.mark.parametrize(("op", "x"), CASES, ids=named)
def test_the_torch_text_computes_the_function(op, x):
    code = op.torch.format("x")
    value = eval(
        code, {"torch": torch, "functional": functional, "x": torch.tensor(x, dtype=torch.float64)}
    )
    assert float(value) == pytest.approx(float(op.python(x)), rel=1e-12)


@pytest.mark.parametrize(("op", "x"), CASES, ids=named)
def test_the_interval_holds_the_value(op, x):
    assert op.interval(interval(x - 0.1, x + 0.1)).has(float(op.python(x)))


@pytest.mark.parametrize(("op", "x"), [(o, x) for o, x in CASES if o.derivative], ids=named)
def test_the_derivative_is_that_of_torch(op, x):
    at = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    value = eval(op.torch.format("at"), {"torch": torch, "functional": functional, "at": at})
    value.backward()
    slope = op.derivative(Numbers(), x, op.python(x), 1.0)
    assert slope == pytest.approx(float(at.grad), rel=1e-9)


@pytest.mark.parametrize("op", OPS, ids=named)
def test_a_helper_has_the_name_that_is_called(op):
    assert op.triton.startswith("tl.") or f"\ndef {op.triton}(x):" in op.helper
