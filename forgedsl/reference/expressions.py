"""docs/reference/expressions.md: built-in functions, axes, types and fields of expressions.

The names and parameters come from forgedsl/schema/builtins.py; their meanings are stated here, and
a test holds the two against each other.
"""

from forgedsl.losses.fields import KNOWN
from forgedsl.reference.markdown import GENERATED, code, join, table
from forgedsl.schema import builtins
from forgedsl.types.ops import OPS

INTRODUCTION = """\
Losses, advantages, filters, rewards, rubrics and dataset columns are expressions. Loosest first:
`a if c else b`, `or`, `and`, `not`, one comparison, `a .. b`, `+ -`, `* / %`, unary `-`, `**`,
calls and names. An expression over several lines stands in parentheses.

Tensors have named axes, and operations go by name, never by position: `[B, T] * [B]` multiplies
every token by the value of its sequence."""

AXES = {
    "B": "sequences of the optimizer step, over all microbatches and ranks",
    "T": "tokens of a sequence, as many as it has; crossed with a mask",
    "G": "siblings: completions of one prompt",
    "V": "the vocabulary",
    "P": "pairs of a chosen and a rejected answer; `x.chosen` and `x.rejected` are the sides",
}
MEANINGS = {
    **{op.name: op.meaning for op in OPS},
    "stop": "the value of `x`, without its gradient",
    "clamp": "`x` held between `lo` and `hi`",
    "clip": "the same as `clamp`, the usual word for ratios",
    "sum": "sum over an axis",
    "mean": "mean over an axis",
    "std": "population standard deviation over an axis",
    "var": "population variance over an axis",
    "min": "`min(a, b)` of two values, or the least over an axis",
    "max": "`max(a, b)` of two values, or the greatest over an axis",
    "count": "how many there are along an axis",
    "batch_mean": "mean over all valid tokens, or sequences, of the step; no gradient",
    "batch_std": "standard deviation over all valid tokens, or sequences, of the step; no gradient",
    "next": "`x` of the next token that counts, 0 behind the last",
    "scan_back": "y with `y = x + decay * next(y)`, from the last token back; `decay` at most 1",
    "token_mean": "sum over valid tokens / how many there are",
    "seq_mean": "mean over sequences of the mean over their tokens; of `[B]`, the mean",
    "seq_sum": "mean over sequences of the sum over their tokens",
    "fixed_horizon": "sum over valid tokens / (sequences x horizon)",
    "pair_mean": "mean over pairs",
    "chat": "messages: a system message, or `none`, a user message, and in `chat` of a dataset the "
    "answer to it: `chat(user = row.question, assistant = row.answer)`",
    "sharegpt": "messages of turns that say `from` (human, gpt, system) and `value`",
    "paragraphs": "the texts that are not empty or null, a blank line between: "
    "`paragraphs(row.instruction, row.input)`",
    "after": "what follows the first `sep` in `s`; all of `s` without one",
    "before": "what precedes the first `sep` in `s`; all of `s` without one",
    "strip": "`s` without blanks around it",
    "lower": "`s` in small letters",
    "len": "number of characters",
    "matches": 'whether a regular expression is found: `matches(r.response, r"\\d+")`',
    "text": "a number, or true or false, as text: `row.question + text(row.id)`",
    "first": "the first that the row has and that is not null: `first(row.question, row.problem)`",
    "file": "the text of a file beside the .forge file",
    "record": "values under names of your own: `target = record(answer = row.a, id = row.id)`",
    "env": "an environment variable, which must be set where the run starts",
}
FIELDS = {
    "logprob": "log-prob of each token under the weights being trained",
    "entropy": "entropy of the next-token distribution, in nats",
    "logsumexp": "log of the sum of exponentials of the logits",
    "mean_logprob": "mean of the log-probs over the vocabulary, for label smoothing",
    "value": "what the value head of the trainer says of each token: `titan(value_head(policy))`",
    "behavior": "log-prob of each token under the weights that sampled it, as the sampler saw it",
    "mask": "tokens that carry loss: what the policy wrote",
    "last": "the last of those tokens",
    "num_tokens": "length of each completion",
    "truncated": "cut at its length limit",
    "num_steps": "updates of the weights before this one, for coefficients that change in a run",
}


def page() -> str:
    """The whole reference."""
    parts = ["# Expressions", GENERATED, INTRODUCTION, "## Functions of numbers"]
    parts.append(_functions(builtins.ELEMENTWISE))
    parts += ["## Reductions", "`axis` is one of the axes below; over `T` the mask is required."]
    parts.append(_functions(builtins.REDUCTIONS))
    parts += ["## Along the tokens", "In advantages over `[B, T]`: what a token is to get of those "
              "behind it.", _functions(builtins.SCANS)]  # fmt: skip
    parts += ["## Aggregators", "The roots of `minimize` and `report`. They alone cross `B`, and "
              "divide by counts of the whole optimizer step, so that microbatches and ranks cannot "
              "change a loss.", _functions(builtins.AGGREGATORS)]  # fmt: skip
    parts += ["## Functions of text", "In columns of datasets and in rewards.",
              _functions(builtins.TEXT)]  # fmt: skip
    parts += ["## Axes", table(("axis", "is"), [(code(a), AXES[a]) for a in AXES])]
    parts += ["## Fields of a loss", "A loss names what it needs; any other name is given by "
              "`replay(..., NAME = ...)`.", _fields()]  # fmt: skip
    names = ", ".join(f"`r.{name}`" for name in builtins.ROLLOUT_ATTRIBUTES)
    played = (
        "In an environment `r.ended` is done, turns, tokens, time or error, and "
        "`r.rewards.NAME` the sum of a part that its steps gave."
    )
    parts += ["## A rollout in a reward", f"`reward f(r: Rollout)` reads {names}. {played}"]
    parts.append("## Types")
    dtypes = ", ".join(code(name) for name in builtins.DTYPES)
    parts.append(
        f"`[B, T] f32` is a tensor, `diff [B, T] f32` one with a gradient; types of elements are "
        f"{dtypes}. A scalar parameter is `float`, `int` or `bool`."
    )
    return join(parts)


def _functions(table_of: dict[str, tuple[str, ...]]) -> str:
    rows = [(code(f"{name}({_parameters(params)})"), MEANINGS[name])
            for name, params in table_of.items()]  # fmt: skip
    return table(("function", "is"), rows)


def _parameters(names: tuple[str, ...]) -> str:
    text = ""
    for name in names:
        bare = name.removesuffix("?")
        comma = "" if not text or text.endswith(", ]") else ", "
        optional = f"[{comma}{bare}]" if text else f"[{bare}, ]"
        text += optional if name != bare else comma + bare
    return text


def _fields() -> str:
    trainer, rollout = builtins.TRAINER_FIELDS, builtins.ROLLOUT_FIELDS
    rows = []
    for name in (*trainer, *rollout, *builtins.RUN_FIELDS):
        axis, dtype = KNOWN[name]
        text = f"[B{', T' if axis else ''}] {dtype}"
        shown = f"diff {text}" if name in trainer else text
        origin = "the run"
        if name in (*trainer, *rollout):
            origin = "the trainer" if name in trainer else "the rollout"
        rows.append((code(name), code(shown), origin, FIELDS[name]))
    return table(("field", "type", "comes from", "is"), rows)
