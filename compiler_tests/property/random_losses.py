"""Random typed losses as .forge text, for tests that draw them with Hypothesis or from a seed.

Expressions go over row statistics, token and sequence inputs and constants; roots aggregate them
over tokens, sequences or preference pairs. Every expression has a value for every input.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

STATISTICS = ("logprob", "entropy", "logsumexp", "mean_logprob")
TOKEN_INPUTS = ("behavior", "ref")
FIELDS = (
    "logprob: diff [{0}, T] f32, entropy: diff [{0}, T] f32, logsumexp: diff [{0}, T] f32, "
    "mean_logprob: diff [{0}, T] f32, behavior: [{0}, T] f32, ref: [{0}, T] f32, adv: [{0}] f32, "
    "mask: [{0}, T] bool"
)
CONSTANTS = ("0.5", "(-1.5)", "2.0", "0.0", "1.0")
LEAVES = (*STATISTICS, *TOKEN_INPUTS, "adv", *CONSTANTS)
FORMS = (
    "({} + {})", "({} - {})", "({} * {})", "min({}, {})", "max({}, {})", "abs({})", "stop({})",
    "sigmoid(clamp({}, -4.0, 4.0))", "tanh({})", "log_sigmoid({})", "softplus({})",
    "expm1(clamp({}, -4.0, 4.0))", "exp(clamp({}, -4.0, 4.0))", "({} / (1.0 + abs({})))",
    "sqrt(1.0 + {} ** 2)", "log1p(abs({}))", "clip({}, -0.7, 1.3)", "({} if {} > {} else {})",
    "({} if {} >= {} and {} < 1.0 else {})",
)  # fmt: skip
REDUCTIONS = (
    "sum({} + logprob, T, mask)", "mean({} + behavior, T, mask)", "max({} + logprob, T, mask)",
    "min({} * logprob, T, mask)", "std({} + entropy, T, mask)",
)  # fmt: skip
ROOTS = (
    "token_mean({} + logprob, mask)",
    "seq_mean({} * logprob + logprob, mask)",
    "seq_sum({} + 0.1 * logprob, mask)",
    "seq_mean(sum({} + logprob, T, mask))",
)
PAIR_ROOT = (
    "pair_mean(-log_sigmoid(0.3 * (sum(x.chosen, T, mask.chosen) "
    "- sum(x.rejected, T, mask.rejected))))"
)

Choose = Callable[[Sequence[str]], str]


def expression(choose: Choose, forms: Sequence[str], depth: int = 4) -> str:
    """An expression whose every choice is made by `choose`."""
    if depth == 0 or choose(("leaf", "form", "form", "form", "form")) == "leaf":
        return choose(LEAVES)
    form = choose(forms)
    return form.format(*(expression(choose, forms, depth - 1) for _ in range(form.count("{}"))))


def loss_text(choose: Choose, *, paired: bool = False) -> str:
    """A loss of the language."""
    if paired:
        body = f"  x = {expression(choose, FORMS)} + logprob\n  minimize {PAIR_ROOT}\n"
        return f"forge 1\nloss f({FIELDS.format('P')}) {{\n{body}}}\n"
    minimized = choose(ROOTS).format(expression(choose, FORMS + REDUCTIONS))
    return f"forge 1\nloss f({FIELDS.format('B')}) {{ minimize {minimized} }}\n"


def from_seed(seed: int) -> str:
    """A loss, always the same for a seed; every sixth is over pairs."""
    rng = random.Random(seed)
    return loss_text(rng.choice, paired=seed % 6 == 5)


@st.composite
def losses(draw: st.DrawFn) -> str:
    """A loss that Hypothesis can make smaller."""
    return loss_text(lambda options: draw(st.sampled_from(options)), paired=draw(st.booleans()))
