"""The typed expression IR of losses, advantages and filters.

A `Tree` is SSA: `values[i]` computes from earlier values only, equal expressions are one value.

    leaves       const(value)  input(name)  total(name)  group_size  siblings  in_side(side)
    elementwise  see `ELEMENTWISE`; operands have equal axes or none (`expand` makes them equal)
    expand(x)    a value of fewer axes, repeated: [B] to [B, T]
    side(x)      the tokens of one side of a pair: [P, T] to [P, T.chosen]
    scans        next(x, mask) and scan_back(x, decay, mask) along the tokens, in advantages
    reductions   seq_sum, seq_max, seq_min (x, mask) and seq_count(mask) remove the token axis;
                 group_sum, group_max, group_min remove G; in a function of the whole step they
                 remove B, and sibling_sum, sibling_max, sibling_min give every sequence the
                 value of its group; total_sum(x, mask) leaves a scalar
    python       the loss or a report of a Python class, computed from all inputs; `attr` names
                 the class, with its arguments and the digest of its file

`total(name)` leaves are counts of the whole optimizer step (num_tokens, num_sequences), given by
the caller; the aggregators (`token_mean`, ...) are `total_sum` over such a count, so that partial
results of microbatches and ranks add up. Reductions skip masked entries, so a NaN there is
harmless. `Tree.totals` names further counts, sums over data that the caller adds up over the step.
"""

from __future__ import annotations

from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.types.ops import BY_NAME
from forgedsl.types.tensors import TensorType

VOCABULARY = ("logprob", "entropy", "logsumexp", "mean_logprob")
"""Statistics of the distribution over the vocabulary that the trainer computes per token."""
VALUE = "value"
"""Output of the trainer's value head for a token."""
ROW_STATISTICS = (*VOCABULARY, VALUE)
"""Statistics that the trainer computes per token. The symbolic gradient is taken with respect to
them. What computes them from logits is the same for all losses."""

UNARY = ("neg", "not", "stop", "float", *BY_NAME)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BINARY = ("add", "sub", "mul", "div", "mod", "pow", "min", "max", "and", "or", *COMPARISONS)
ELEMENTWISE = frozenset((*UNARY, *BINARY, "clamp", "where"))
SEQUENCE_REDUCTIONS = frozenset(("seq_sum", "seq_count", "seq_max", "seq_min"))
GROUP_REDUCTIONS = frozenset(("group_sum", "group_max", "group_min"))
SIBLING_REDUCTIONS = frozenset(("sibling_sum", "sibling_max", "sibling_min"))
REDUCTIONS = SEQUENCE_REDUCTIONS | GROUP_REDUCTIONS | SIBLING_REDUCTIONS | {"total_sum"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One operation. `attr` is the constant, the input's name, or the side of a pair."""

    op: str
    args: tuple[int, ...] = ()
    attr: float | bool | str | None = None
    type: TensorType
    name: str = ""
    """the name it was given in the source, for readable output"""
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A declared input of a loss: what the trainer, the rollout or the flow must supply."""

    name: str
    type: TensorType
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A function of the expression language. `fields` are the inputs it reads, `unused` those it
    declares but does not need after folding; `outputs` names the values it returns: "loss" and
    each report, "result" for advantages and filters."""

    name: str
    kind: str
    fields: tuple[Field, ...]
    unused: tuple[str, ...]
    values: tuple[Value, ...]
    outputs: tuple[tuple[str, int], ...]
    totals: tuple[tuple[str, int], ...] = ()
    span: Span

    def output(self, name: str) -> int:
        return dict(self.outputs)[name]

    @property
    def is_python(self) -> bool:
        """True if a Python class computes it, so that its contents are unknown."""
        return any(value.op == "python" for value in self.values)

    @property
    def reports(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.outputs if name not in ("loss", "result"))


def reachable(values: tuple[Value, ...] | list[Value], roots: list[int]) -> list[int]:
    """Return the values that `roots` depend on, in order."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(values[node].args)
    return sorted(seen)
