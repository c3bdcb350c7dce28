"""docs/reference/expressions.md: built-in functions, axes, types and fields of expressions.

The names and parameters come from forgedsl/schema/builtins.py. Their meanings are stated here, and
a test checks that no name lacks one.
"""

from forgedsl.losses.fields import KNOWN
from forgedsl.reference.markdown import GENERATED, code, join, table
from forgedsl.schema import builtins
from forgedsl.types.ops import OPS

INTRODUCTION = """\
Losses, advantages, filters, rewards, rubrics and dataset columns are expressions. Operators, from
lowest to highest precedence: `a if c else b`, `or`, `and`, `not`, one comparison, `+ -`, `* / %`,
unary `-`, `**`, calls and names. Put an expression that spans several lines in parentheses.

Tensors have named axes, and operations match axes by name, never by position: `[B, T] * [B]`
multiplies every token by the value of its sequence."""

AXES = {
    "B": "in a loss: sequences of the update, over all microbatches and ranks; in an advantage: "
    "sequences of the step",
    "T": "tokens of a sequence, whose number varies; reductions over `T` need a mask",
    "G": "completions of one prompt (a group)",
    "V": "the vocabulary",
    "P": "pairs of a chosen and a rejected answer; `x.chosen` and `x.rejected` are the sides",
}
MEANINGS = {
    **{op.name: op.meaning for op in OPS},
    "stop": "the value of `x`, without its gradient",
    "clamp": "`x` limited to the range from `lo` to `hi`",
    "clip": "the same as `clamp`; the usual name for importance ratios",
    "sum": "sum over an axis",
    "mean": "mean over an axis",
    "std": "population standard deviation over an axis",
    "var": "population variance over an axis",
    "min": "the smaller of two values: `min(a, b)`; or the minimum over an axis",
    "max": "the larger of two values: `max(a, b)`; or the maximum over an axis",
    "count": "number of elements along an axis; with a mask, of those where it is true",
    "batch_mean": "mean over all valid tokens, or sequences, of the update; no gradient",
    "batch_std": "standard deviation over all valid tokens, or sequences, of the update; no "
    "gradient",
    "next": "`x` of the next token where the mask is true; 0 after the last one",
    "scan_back": "reverse scan: the `y` for which `y = x + decay * next(y)`; `decay` is at most 1",
    "token_mean": "sum over valid tokens / number of valid tokens",
    "seq_mean": "mean over sequences of the mean over their tokens; for `[B]`, the mean over "
    "sequences",
    "seq_sum": "mean over sequences of the sum over their tokens",
    "fixed_horizon": "sum over valid tokens / (sequences x horizon)",
    "pair_mean": "mean over pairs",
    "chat": "chat messages: a system message (or `none`), a user message and, in `chat` of a "
    "dataset, the answer to learn: `chat(user = row.question, assistant = row.answer)`",
    "sharegpt": "chat messages from ShareGPT turns, which have `from` (human, gpt, system) and "
    "`value`",
    "paragraphs": "joins the texts that are not empty or null, with a blank line between them: "
    "`paragraphs(row.instruction, row.input)`",
    "after": "the text after the first `sep` in `s`; all of `s` if it has no `sep`",
    "before": "the text before the first `sep` in `s`; all of `s` if it has no `sep`",
    "strip": "`s` without leading and trailing white space",
    "lower": "`s` in lower case",
    "len": "number of characters",
    "matches": 'true if the regular expression occurs in `s`: `matches(r.response, r"\\d+")`',
    "text": "a number or a Boolean converted to text: `row.question + text(row.id)`",
    "first": "the first argument that exists in the row and is not null: `first(row.question, "
    "row.problem)`",
    "file": "the text of a file; the path is relative to the .forge file",
    "record": "several named values: `target = record(answer = row.a, id = row.id)`",
    "env": "the value of an environment variable, which must be set on the host that starts the "
    "run",
}
FIELDS = {
    "logprob": "log-prob of each token under the weights being trained",
    "entropy": "entropy of the next-token distribution, in nats",
    "logsumexp": "log of the sum of exponentials of the logits",
    "mean_logprob": "mean of the log-probs over the vocabulary, for label smoothing",
    "value": "output of the trainer's value head for each token: `titan(value_head(policy))`",
    "behavior": "log-prob of each token under the weights that sampled it, as computed by the "
    "sampler",
    "mask": "true for tokens that the loss counts, which are those that the policy wrote",
    "last": "true for the last token with `mask`",
    "num_tokens": "number of tokens of each completion",
    "truncated": "true if the completion was cut at its length limit",
    "num_steps": "number of weight updates before this one, for coefficients that change during a "
    "run",
}


def page() -> str:
    """The whole reference."""
    parts = ["# Expressions", GENERATED, INTRODUCTION, "## Functions of numbers"]
    parts.append(_functions(builtins.ELEMENTWISE))
    parts += ["## Reductions", "`axis` is one of the axes below; over `T` the mask is required."]
    parts.append(_functions(builtins.REDUCTIONS))
    parts += ["## Along the tokens", "For advantages over `[B, T]`: a token's value computed from "
        "the tokens after it.", _functions(builtins.SCANS)]  # fmt: skip
    parts += ["## Aggregators", "An aggregator is the outermost function of `minimize` and "
              "`report`. Only aggregators reduce over `B`. They divide by counts of the whole "
              "update (one call of the optimizer), so the split into microbatches and ranks does "
              "not change a loss.",
              _functions(builtins.AGGREGATORS)]  # fmt: skip
    parts += ["## Functions of text", "In columns of datasets and in rewards.",
              _functions(builtins.TEXT)]  # fmt: skip
    parts += ["## Axes", table(("axis", "meaning"), [(code(a), AXES[a]) for a in AXES])]
    parts += ["## Fields of a loss", "A loss declares the fields that it reads. Names other than "
        "these are set by `replay(..., NAME = ...)`.", _fields()]  # fmt: skip
    names = ", ".join(f"`r.{name}`" for name in builtins.ROLLOUT_ATTRIBUTES)
    played = (
        'After a trajectory in an environment, `r.ended` is one of `"done"`, `"turns"`, '
        '`"tokens"`, `"time"` and `"error"`, and `r.rewards.NAME` is the sum of the rewards called '
        "NAME over all turns."
    )
    parts += ["## A rollout in a reward", f"`reward f(r: Rollout)` reads {names}. {played}"]
    parts.append("## Types")
    dtypes = ", ".join(code(name) for name in builtins.DTYPES)
    parts.append(
        "`[B, T] f32` is a tensor, `diff [B, T] f32` a tensor with a gradient. Element types: "
        f"{dtypes}. A scalar parameter is `float`, `int` or `bool`."
    )
    return join(parts)


def _functions(table_of: dict[str, tuple[str, ...]]) -> str:
    rows = [(code(f"{name}({_parameters(params)})"), MEANINGS[name])
            for name, params in table_of.items()]  # fmt: skip
    return table(("function", "meaning"), rows)


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
    return table(("field", "type", "comes from", "meaning"), rows)
