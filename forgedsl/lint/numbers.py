"""Settings of a program that must be compatible, with the ranges that published runs use.

View --numbers--> Number: value, where it stands, what it is compared with
     FITS: one row each kind of number: its facts, range, source, what to write instead

N907 reports a number outside of its range. A row asks only for what the program has: no LoRA, no
row about LoRA.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from forgedsl.ir.program import Constructor, Decl, Function, Value, model_of
from forgedsl.lint.environments import python_environments
from forgedsl.lint.losses import LossView
from forgedsl.lint.models import arch_of
from forgedsl.lint.prompts import asked_to_reason, drawn_from, form_of, said_to
from forgedsl.lint.rewards import score_interval
from forgedsl.lint.view import View, place
from forgedsl.losses.tree import reachable
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    import ast as python

INF = float("inf")
ADAPTIVE = "adamw"
"""the optimizer whose update is about as large as the learning rate"""
LARGE_MODEL = 0.5
"""billions of parameters from which on a model needs a smaller learning rate"""
NO_COEFFICIENT = 0.99
"""gradient of the KL term relative to that of the advantage, from which on the term probably has no
coefficient (other rules report that) or another denominator, so that this table is silent"""
AT_END = r"(whitened_)?(bootstrapped_)?(gae|returns)"
"""advantages of the library that use a critic, for one score at the end of an answer"""
SEVERAL = 100
"""steps from which on a run is more than a trial"""
SIZE = r"(?<![\d.])(\d+(?:\.\d+)?)[bB](?![a-zA-Z])"
"""parameters in the name of a model, in billions: 1.7B"""


TOKENS_OF_WORD, TOKENS_OF_CHAT = 1.3, 12
"""tokens of an English word, and those that a chat template writes around two messages"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number of the program. `message` says what it is and what it is compared with."""

    value: float
    span: Span
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A row of the table: numbers of the program, and their range. `source` is a thread or paper
    with this range, or a run that failed outside of it."""

    name: str
    numbers: Callable[[View], Iterator[Number]]
    low: float = -INF
    high: float = INF
    source: str
    help: str


def _trainers(view: View) -> Iterator[Decl]:
    for name in dict.fromkeys(step.receiver for step in view.steps):
        yield view.program.services[name]


def _samples(view: View) -> bool:
    return any(Role.SAMPLES in step.roles for step in view.program.flow)


def _adaptive(view: View, *, lora: bool) -> Iterator[tuple[Decl, Value]]:
    for trainer in _trainers(view):
        settings = trainer.settings
        rank, kind = settings.get("lora.rank"), settings.get("optimizer.kind")
        rate = settings.get("optimizer.lr")
        if rate is None or kind is None or _word_of(kind) != ADAPTIVE:
            continue
        if (rank is not None and isinstance(rank.value, int)) == lora and rate.value > 0:
            yield trainer, rate


def _word_of(setting: Value) -> str:
    """Return the word of a setting that is one of several."""
    return str(getattr(setting.value, "name", setting.value))


def _rate_of_adapters(view: View) -> Iterator[Number]:
    for trainer, rate in _adaptive(view, lora=True):
        message = f"`{trainer.name}` trains LoRA adapters at a learning rate of {rate.value:g}"
        yield Number(value=rate.value, span=place(rate, trainer), message=message)


def _rate_of_weights(view: View) -> Iterator[Number]:
    for trainer, rate in _adaptive(view, lora=False) if _samples(view) else ():
        model = view.program.models[model_of(trainer)]
        size = billions(model)
        if size >= LARGE_MODEL and not _on_cpu(trainer):
            message = (
                f"`{trainer.name}` trains all weights of a model of {size:g}B on its own samples, "
                f"at a learning rate of {rate.value:g}"
            )
            yield Number(value=rate.value, span=place(rate, trainer), message=message)


def _rate_of_pairs(view: View) -> Iterator[Number]:
    compares = any(loss.is_pairs and loss.fields("reference") for loss in _losses(view))
    for trainer, rate in _adaptive(view, lora=False) if compares else ():
        size = billions(view.program.models[model_of(trainer)])
        if size >= LARGE_MODEL and not _on_cpu(trainer):
            message = (
                f"`{trainer.name}` trains all weights of a model of {size:g}B on pairs, at a "
                f"learning rate of {rate.value:g}"
            )
            yield Number(value=rate.value, span=place(rate, trainer), message=message)


def _rate_of_muon(view: View) -> Iterator[Number]:
    for trainer in _trainers(view):
        settings = trainer.settings
        kind, rate = settings.get("optimizer.kind"), settings.get("optimizer.lr")
        if kind is None or rate is None or _word_of(kind) != "muon":
            continue
        source = view.program.models[model_of(trainer)].settings["source"].value
        scaled = _word_of(settings["optimizer.adjust_lr"]) == "match_rms_adamw"
        if scaled and getattr(source, "name", "") != "random":
            message = (
                f"updates of Muon have the size of AdamW's here, and the learning rate of "
                f"`{trainer.name}` is {rate.value:g}"
            )
            yield Number(value=rate.value, span=place(rate, trainer), message=message)


def _temperature(view: View) -> Iterator[Number]:
    for service in view.samplers():
        heat = service.settings["sampling.temperature"]
        if service.ctor_args[0].name in view.trained and heat.value > 0:  # D602 reports 0
            message = (
                f"`{service.name}` samples at a temperature of {heat.value:g}: the answers of a "
                "group are nearly all alike"
            )
            yield Number(value=float(heat.value), span=place(heat, service), message=message)


def _room_for_reasoning(view: View) -> Iterator[Number]:
    for service in view.samplers() if asked_to_reason(view) else ():
        most = service.settings["sampling.max_tokens"]
        size = billions(view.program.models[model_of(service)])
        if isinstance(most.value, int) and size >= LARGE_MODEL:
            message = f"the prompt asks for reasoning, and an answer may have {most.value} tokens"
            yield Number(value=float(most.value), span=place(most, service), message=message)


def _room_for_question(view: View) -> Iterator[Number]:
    for dataset in drawn_from(view):
        most = dataset.settings["max_prompt_tokens"]
        fixed = math.ceil(len(said_to(dataset).split()) * TOKENS_OF_WORD)
        fixed += TOKENS_OF_CHAT if form_of(view, dataset) == "chat" else 0
        cut = _word_of(dataset.settings["on_long"]) == "truncate"
        if fixed and cut and isinstance(most.value, int):
            message = (
                f"prompts of `{dataset.name}` are cut to {most.value} tokens, and the text around "
                f"the question has about {fixed}"
            )
            yield Number(value=most.value - fixed, span=place(most, dataset), message=message)


def _cut_observations(view: View) -> Iterator[Number]:
    for env in python_environments(view) if view.program.environments else ():
        most = env.env.settings.get("max_observation")
        for tool in sorted(env.tools & env.methods.keys()) if most is not None else ():
            words = _words_before(env.methods[tool])
            if most is not None and words:
                message = (
                    f"`max_observation = {most.value}` keeps the first {most.value} tokens, and "
                    f"tool `{tool}` says what it found after {words} words"
                )
                yield Number(value=most.value / words, span=place(most, env.env), message=message)


def _words_before(method: python.AST) -> int:
    """Return how many words a tool writes before the value at the end of its text; 0 if it returns
    another text."""
    import ast as python

    found = [0]
    for node in python.walk(method):
        if not isinstance(node, python.JoinedStr) or len(node.values) < 2:
            continue
        *before, last = node.values
        if isinstance(last, python.FormattedValue):
            texts = [str(getattr(part, "value", "")) for part in before
                     if isinstance(part, python.Constant)]  # fmt: skip
            values = sum(isinstance(part, python.FormattedValue) for part in before)
            found.append(len(" ".join(texts).split()) + values)
    return max(found)


def _on_cpu(trainer: Decl) -> bool:
    """True if a profile lets the trainer try a small model on a CPU."""
    return _word_of(trainer.settings["device"]) == "cpu"


def _rate_in_bf16(view: View) -> Iterator[Number]:
    for trainer, rate in _adaptive(view, lora=False):
        precision = trainer.settings["optimizer.precision"]
        if _word_of(precision) == "bf16":
            message = (
                f"weights are stored in bf16, which loses updates below 0.4 % of a weight, and the "
                f"learning rate is {rate.value:g}"
            )
            yield Number(value=rate.value, span=place(precision, trainer), message=message)


def _scale_of_adapters(view: View) -> Iterator[Number]:
    for trainer in _trainers(view):
        rank, alpha = (trainer.settings.get(key) for key in ("lora.rank", "lora.alpha"))
        if rank is not None and alpha is not None and isinstance(rank.value, int):
            value = alpha.value / rank.value
            message = (
                f"the LoRA update is scaled by alpha / rank = {alpha.value:g} / {rank.value} = "
                f"{value:g}"
            )
            at = alpha if alpha.origin.span is not None else rank
            yield Number(value=value, span=place(at, trainer), message=message)


def _parameter(loss: LossView, name: str) -> float | None:
    """Return the value of a parameter of a loss of the library."""
    if not loss.function.module.startswith("std/"):
        return None
    for field in loss.function.fields:
        value = getattr(field.default, "value", None)
        if field.name == name and isinstance(value, int | float):
            return float(value)
    return None


def _losses(view: View) -> Iterator[LossView]:
    for loss in view.losses:
        if loss.step is not None:
            yield loss


def _scores(view: View) -> Iterator[tuple[float, float]]:
    """Yield the bounds of the scores of the flow."""
    for step in view.program.flow:
        found = score_interval(step.receiver, view) if Role.SCORES in step.roles else None
        if found is not None and found.is_bounded and found.hi > found.lo:
            yield found.lo, found.hi


def _clip_of_values(view: View) -> Iterator[Number]:
    for loss in _losses(view):
        clip = _parameter(loss, "value_clip") or 0.0
        if not clip and "value" in loss.read:
            clip = _parameter(loss, "clip") or 0.0
        for low, high in _scores(view) if clip > 0 else ():
            message = (
                f"a value may move by {clip:g} in a step, and scores go from {low:g} to {high:g}: "
                "the critic takes many steps to follow them"
            )
            yield Number(value=clip / (high - low), span=loss.place, message=message)


def _discounts(view: View, key: str) -> Iterator[tuple[str, float, Span]]:
    """Yield `gamma` or `lam` of the calls that compute advantages from a score at the end."""
    for step in view.program.flow:
        function = view.program.functions.get(step.receiver)
        if Role.COMPUTES not in step.roles or function is None:
            continue
        names = {field.name for field in function.fields}
        if key not in names or not re.fullmatch(AT_END, _word(function)):
            continue
        given = step.settings.get(key)
        own = next((f.default for f in function.fields if f.name == key), None)
        value = given.value if given is not None else getattr(own, "value", None)
        if isinstance(value, int | float):
            at = given.origin.span if given is not None else None
            yield _word(function), float(value), at or step.span


def _word(function: Function) -> str:
    return function.name.rpartition(".")[2]


def _discount(view: View) -> Iterator[Number]:
    longest = view.max_tokens
    for name, gamma, span in _discounts(view, "gamma"):
        if longest is not None and 0 < gamma < 1:
            left = gamma**longest
            message = (
                f"`gamma = {gamma:g}` of `{name}` counts per token: {left:.1%} of a score reaches "
                f"the first of {longest} tokens"
            )
            yield Number(value=left, span=span, message=message)


def _two_discounts(view: View) -> Iterator[Number]:
    found = list(_discounts(view, "gamma"))
    for name, gamma, span in found[1:]:
        first, other, _ = found[0]
        message = f"`{name}` discounts by {gamma:g}, and `{first}` by {other:g}"
        yield Number(value=abs(gamma - other), span=span, message=message)


def _lambda(view: View) -> Iterator[Number]:
    for name, lam, span in _discounts(view, "lam"):
        message = (
            f"`lam = {lam:g}` makes the advantage of `{name}` almost the one-step TD error of the "
            "critic"
        )
        yield Number(value=lam, span=span, message=message)


def _updates(view: View) -> Iterator[Number]:
    for step in view.steps if _samples(view) else ():
        epochs = step.settings["epochs"]
        message = f"each batch of samples is trained on {epochs.value} times"
        span = epochs.origin.span or step.span
        yield Number(value=float(epochs.value), span=span, message=message)


def _count_of_updates(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else None
    for loss in _losses(view) if isinstance(steps, int) else ():
        values = loss.tree.values
        quotients = [value for value in values if value.op == "div"] if loss.updates > 1 else []
        for value in quotients:
            over = values[value.args[1]].attr
            read = {values[n].attr for n in reachable(values, [value.args[0]])}
            if not isinstance(over, int | float) or "num_steps" not in read:
                continue
            total = (steps or 0) * loss.updates
            if total / 2 <= over * loss.updates <= total:
                message = (
                    f"`num_steps / {over:g}` counts updates, and {steps} steps of {loss.updates} "
                    f"updates are {total}"
                )
                yield Number(value=over / total, span=value.span, message=message)


def _answers_of_an_eval(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else 0
    for each in view.program.evals.values() if (steps or 0) >= 2 * SEVERAL else ():
        limit = each.settings["limit"]
        if isinstance(limit.value, int):
            answers = limit.value * int(each.settings["sample.n"].value or 1)
            message = f"`{each.name}` scores {answers} answers, which differ by chance"
            yield Number(value=float(answers), span=place(limit, each), message=message)


def _age(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    syncs = [s.settings["every"].value for s in view.program.flow if Role.TRANSFERS in s.roles]
    if schedule is None or schedule.label != "async" or any(every > 1 for every in syncs):
        return
    age = schedule.settings["max_policy_age"]
    if isinstance(age.value, int):
        message = f"samples may be {age.value} policy versions old"
        yield Number(value=float(age.value), span=place(age, schedule), message=message)


def _stored_age(view: View) -> Iterator[Number]:
    for buffer in view.program.declared.get("buffer", {}).values():
        age = buffer.settings["max_age"]
        message = f"groups drawn from `{buffer.name}` may be {age.value} policy versions old"
        yield Number(value=float(age.value), span=place(age, buffer), message=message)


def _entropy(view: View) -> Iterator[Number]:
    for loss in _losses(view):
        weight = _parameter(loss, "entropy_coef")
        if weight is not None and weight <= 0.1:  # N906 reports larger ones
            message = f"the entropy counts {weight:g} times as much as the advantage"
            yield Number(value=weight, span=loss.place, message=message)


def _divergence(view: View) -> Iterator[Number]:
    for loss in _losses(view):
        given = _parameter(loss, "beta")
        if loss.is_pairs or (
            given is not None and given > 1.0
        ):  # N906 reports those of the library
            continue
        pull, pushed = loss.cached(_slopes)
        if 0 < pull < NO_COEFFICIENT * pushed:
            message = (
                f"at a log-ratio of 1 to the reference, the KL term of loss `{loss.name}` has "
                f"{pull / pushed:.2g} times the gradient of an advantage of 1"
            )
            yield Number(value=pull / pushed, span=loss.place, message=message)


def _slopes(loss: LossView) -> tuple[float, float]:
    """Return the slope of the divergence at a log-ratio of 1, and that of an advantage of 1."""
    weights = [name for name in loss.fields("weight") if name in loss.read]
    references = [name for name in loss.fields("reference") if name in loss.read]
    if "logprob" not in loss.read or not weights or len(references) != 1:
        return 0.0, 0.0
    pull = loss.slope(weight=0.0, distance=1.0) - loss.slope(weight=0.0, distance=0.0)
    return abs(pull), abs(loss.gain())


def _warmup(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else None
    for trainer in _trainers(view) if isinstance(steps, int) and steps >= SEVERAL else ():
        warmup = trainer.settings.get("optimizer.warmup")
        if warmup is not None and 0 < warmup.value < steps:  # A311 reports longer ones
            message = f"{warmup.value} of {steps} steps are warm-up"
            yield Number(value=warmup.value / steps, span=place(warmup, trainer), message=message)


def _horizon(view: View) -> Iterator[Number]:
    turns, new = view.turns.hi, view.max_tokens or 0
    for loss in _losses(view) if new and 1 < turns < INF else ():
        horizon = _parameter(loss, "horizon")
        if horizon is not None:
            message = (
                f"`horizon = {horizon:g}` is the length of one turn, and a trajectory has up to "
                f"{turns:g} turns of {new} tokens"
            )
            yield Number(value=horizon / (turns * new), span=loss.place, message=message)


def _margin_of_means(view: View) -> Iterator[Number]:
    for loss in _losses(view):
        if loss.is_pairs and loss.fields("reference") and _means(loss):
            beta = 2 * abs(loss.slope(side="chosen"))
            message = (
                f"loss `{loss.name}` compares mean log-probs with beta = {beta:.2g}: their margin "
                "is small, so the loss hardly changes"
            )
            if beta > 0:
                yield Number(value=beta, span=loss.place, message=message)


def _means(loss: LossView) -> bool:
    """True if both sides of a pair loss are means over their tokens, under a sigmoid."""
    values = loss.tree.values
    inside = [values[node].args[0] for node in loss.objective if values[node].op == "log_sigmoid"]
    means = [
        node
        for node in reachable(values, inside)
        if values[node].op == "div"
        and any(values[n].op == "seq_count" for n in reachable(values, [values[node].args[1]]))
    ]
    slopes = [loss.slope(side=side) for side in ("chosen", "rejected")]
    return len(means) > 1 and math.isclose(*map(abs, slopes), rel_tol=1e-6) and slopes[0] != 0


def billions(model: Decl) -> float:
    """Return the parameters of a model in billions, as its name or declared size says; 0 if
    neither does."""
    arch, source = arch_of(model), model.settings["source"].value
    texts = [str(arch.args.get("size"))] if isinstance(arch, Constructor) else []
    if getattr(source, "name", "") != "hf":
        return 0.0
    texts.append(str(source.args["id"]))
    found = [re.search(SIZE, text) for text in texts]
    return next((float(match[1]) for match in found if match is not None), 0.0)


FITS = (
    Fit(name="learning rate of LoRA", numbers=_rate_of_adapters, low=3e-6,
        source="TRL #2872, X-R1 #66: at 5e-7 and 1e-6 nothing was learned",
        help="`lr = 1e-5` to `1e-4`: adapters need about ten times the rate of full weights"),
    Fit(name="learning rate of full weights", numbers=_rate_of_weights, high=2e-4,
        source="hello-agents #770: already at 5e-5 the accuracy fell from 57 to 2 %",
        help="`lr = 1e-6`, at most 1e-5"),
    Fit(name="alpha over rank", numbers=_scale_of_adapters, low=1 / 32, high=32.0,
        source="2106.09685 and recipes of peers: alpha is 1/4 to 4 times the rank",
        help="`alpha` near the rank, such as `lora { rank = 16, alpha = 32 }`"),
    Fit(name="rate in bf16", numbers=_rate_in_bf16, low=1e-5,
        source="AReaL #1634: a rate tuned with weights in bf16 was three times too high in f32",
        help="`precision = bf16_moments`, which keeps the weights in f32"),
    Fit(name="clip of values", numbers=_clip_of_values, low=0.05,
        source="stable-baselines #216: the clip is a distance, so it follows the scale of scores",
        help="a `value_clip` of about 0.2 of the range of scores, or scores from 0 to 1"),
    Fit(name="gamma over the horizon", numbers=_discount, low=0.1,
        source="rlhf-book #364: TRL, verl, OpenRLHF and DeepSpeed-Chat have 1",
        help="`gamma = 1.0`"),
    Fit(name="gamma in two places", numbers=_two_discounts, high=1e-9,
        source="1506.02438: advantages and targets of the critic have one discount",
        help="one parameter for both, `param gamma : float = 1.0`"),
    Fit(name="lam", numbers=_lambda, low=0.5,
        source="1506.02438 has 0.96 to 0.99, summarize-from-feedback #6 (2009.01325) 0.95",
        help="`lam = 0.95`, or 1.0"),
    Fit(name="epochs", numbers=_updates, high=10.0,
        source="1707.06347 has 3 to 15 for control tasks; TRL has 4, verl and OpenRLHF 1",
        help="`epochs = 1` to 4, and more `minibatches`"),
    Fit(name="updates of a step", numbers=_count_of_updates, low=0.6,
        source="the schedule of a coefficient is over after a part of the run",
        help="divide by the updates of the run: steps times `epochs` times `minibatches`"),
    Fit(name="answers of an eval", numbers=_answers_of_an_eval, low=20.0,
        source="rllm #143: the standard error of a share of 8 answers is up to 0.18",
        help="`limit = 200`: a standard error of at most 0.035"),
    Fit(name="policy age", numbers=_age, high=16.0,
        source="AReaL (2505.24298) bounds it at 8; slime #1800 trained on older ones",
        help="`max_policy_age = 1` to 8"),
    Fit(name="age in a buffer", numbers=_stored_age, high=100.0,
        source="samples of a policy this old have ratios far from 1; replay_math has 12",
        help="`max_age` of at most some dozens"),
    Fit(name="entropy", numbers=_entropy, high=0.03,
        source="verl #781: already 0.001 made the entropy explode; 2503.14476 has no such term",
        help="no entropy term; if the entropy falls, raise the upper bound of the clip to 1.28"),
    Fit(name="divergence", numbers=_divergence, high=0.5,
        source="2402.03300 has 0.04, TRL, verl and OpenRLHF 0 to 0.04",
        help="a `beta` of 0.001 to 0.1"),
    Fit(name="warm-up", numbers=_warmup, high=0.5,
        source="prime-rl #968; published recipes warm up for 3 to 10 % of the steps",
        help="a `warmup` of some per cent of `steps`"),
    Fit(name="horizon", numbers=_horizon, low=0.5,
        source="2503.20783: the constant is the budget of a whole completion",
        help="`horizon` = `max_turns` times `max_tokens`"),
    Fit(name="margin of means", numbers=_margin_of_means, low=0.5,
        source="2405.14734 (SimPO): means over tokens go with a beta of 2 to 10, sums with 0.1",
        help="a beta of 2 to 10, or `sum(..., T, mask)` in place of `mean`"),
    Fit(name="learning rate of pairs", numbers=_rate_of_pairs, high=2e-5,
        source="LLaMA-Factory #7734: at 1e-4 the model repeats itself; 2305.18290 has 1e-6",
        help="`lr = 5e-7` to `5e-6`"),
    Fit(name="learning rate of Muon", numbers=_rate_of_muon, high=2e-3,
        source="Muon #49: 0.02 is the rate of updates that are not scaled",
        help="the learning rate that AdamW would have, or `adjust_lr = original`"),
    Fit(name="temperature", numbers=_temperature, low=0.1,
        source="ms-swift #4570: answers that are alike have advantages of 0",
        help="`temperature = 1.0`, for the trainer too"),
    Fit(name="room for reasoning", numbers=_room_for_reasoning, low=128.0,
        source="TRL #5697: answers that were cut had no gradient",
        help="`max_tokens = 1024`, or a prompt that asks for the answer alone"),
    Fit(name="room for the question", numbers=_room_for_question, low=8.0,
        source="LLaMA-Factory #3143: what is cut is the beginning of the prompt",
        help="`max_prompt_tokens = 512`, or `on_long = drop`"),
    Fit(name="length of an observation", numbers=_cut_observations, low=1.0,
        source="verl #6313: the end of a tool's answer was cut off",
        help="a larger `max_observation`, or a tool that answers with the value alone"),
)  # fmt: skip
