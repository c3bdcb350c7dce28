"""Settings of a program that must be compatible, with the ranges that published runs use.

View --numbers--> Number: value, where it stands, what it is compared with
     RANGES: one row for each kind of number: where it is read, range, source, what to write instead

N907 reports a number outside of its range. A row finds numbers only in programs that have them: a
row about LoRA finds none in a program without LoRA.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from forgedsl.ir.program import Constructor, Decl, Deferred, Value, model_of
from forgedsl.lint.models import arch_of
from forgedsl.lint.number_ranges import Number, NumberRange
from forgedsl.lint.numbers_of_losses import LOSS_RANGES
from forgedsl.lint.prompts import (
    asked_to_reason,
    drawn_from,
    form_of,
    row_count,
    rows_of,
    said_to,
    value_at,
)
from forgedsl.lint.sources import parts
from forgedsl.lint.view import View, place
from forgedsl.syntax.walk import reads
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    import ast as python

ADAPTIVE = ("adamw", "adam")
"""the optimizers whose update is about as large as the learning rate"""
LARGE_MODEL = 0.5
"""billions of parameters from which on a model needs a smaller learning rate"""
LARGEST = 7.0
"""billions of parameters from which on a model needs a learning rate that is smaller still"""
SEVERAL = 100
"""steps from which on a run is more than a trial"""
SIZE = r"(?<![\d.])(\d+(?:\.\d+)?)[bB](?![a-zA-Z])"
"""parameters in the name of a model, in billions: 1.7B"""


CHARACTERS = 6
"""characters of a token: more than most texts have, so that lengths in tokens are estimated low"""
RECORDS = ("record.steps", "record.disk")
TOKENS_OF_WORD, TOKENS_OF_CHAT = 1.3, 12
"""tokens of an English word, and those that a chat template writes around two messages"""


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
        if rate is None or kind is None or _word_of(kind) not in ADAPTIVE:
            continue
        if (rank is not None and isinstance(rank.value, int)) == lora and rate.value > 0:
            yield trainer, rate


def _word_of(setting: Value) -> str:
    """Return the word that a setting has, or the name of its constructor."""
    return str(getattr(setting.value, "name", setting.value))


def _rate_of_adapters(view: View) -> Iterator[Number]:
    for trainer, rate in _adaptive(view, lora=True):
        message = f"`{trainer.name}` trains LoRA adapters at a learning rate of {rate.value:g}"
        yield Number(value=rate.value, span=place(rate, trainer), message=message)


def _full_rates(view: View) -> Iterator[tuple[Decl, Value, float]]:
    """Yield trainers of all weights of a model, with the rate and the size in billions. A profile
    may let a trainer try a small model on a CPU: those are left out."""
    for trainer, rate in _adaptive(view, lora=False):
        size = billions(view.program.models[model_of(trainer)])
        if size >= LARGE_MODEL and not _on_cpu(trainer):
            yield trainer, rate, size


def _rate_of_weights(view: View) -> Iterator[Number]:
    for trainer, rate, size in _full_rates(view) if _samples(view) else ():
        message = (
            f"`{trainer.name}` trains all weights of a model of {size:g}B on its own samples, "
            f"at a learning rate of {rate.value:g}"
        )
        yield Number(value=rate.value, span=place(rate, trainer), message=message)


def _rate_of_large_models(view: View) -> Iterator[Number]:
    for trainer, rate, size in _full_rates(view) if _samples(view) else ():
        if size >= LARGEST and rate.value <= 2e-4:  # the row above reports higher rates
            message = (
                f"`{trainer.name}` trains all weights of a model of {size:g}B on its own samples, "
                f"at a learning rate of {rate.value:g}"
            )
            yield Number(value=rate.value, span=place(rate, trainer), message=message)


def _rate_of_demonstrations(view: View) -> Iterator[Number]:
    learns = any(loss.is_pairs or loss.fields("weight") for loss in view.losses)
    for trainer, rate, size in () if _samples(view) or learns else _full_rates(view):
        source = view.program.models[model_of(trainer)].settings["source"].value
        if getattr(source, "name", "") != "random":
            message = (
                f"`{trainer.name}` trains all weights of a model of {size:g}B on demonstrations, "
                f"at a learning rate of {rate.value:g}"
            )
            yield Number(value=rate.value, span=place(rate, trainer), message=message)


def _rate_of_pairs(view: View) -> Iterator[Number]:
    pairs = any(loss.is_pairs for loss in view.losses if loss.step is not None)
    for trainer, rate, size in _full_rates(view) if pairs else ():
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
        scale = settings.get("optimizer.adjust_lr")
        scaled = scale is not None and _word_of(scale) == "match_rms_adamw"
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


def _room_in_evals(view: View) -> Iterator[Number]:
    drawn, trained = drawn_from(view), view.max_tokens
    for each in view.program.evals.values() if trained is not None else ():
        most, dataset = each.settings["sample.max_tokens"], each.settings["dataset"].value
        if not isinstance(most.value, int) or view.program.datasets.get(dataset.name) not in drawn:
            continue
        message = (
            f"`{each.name}` cuts an answer after {most.value} tokens, and training after {trained}"
        )
        yield Number(value=most.value / (trained or 1), span=place(most, each), message=message)


def _room_for_rows(view: View) -> Iterator[Number]:
    for dataset in drawn_from(view):
        most, prompt = dataset.settings["max_prompt_tokens"], dataset.settings["prompt"].value
        cut = _word_of(dataset.settings["on_long"]) == "truncate"
        if not cut or not isinstance(most.value, int) or not isinstance(prompt, Deferred):
            continue
        columns = [keys for keys, _ in reads(prompt.expr, "row") if keys]
        rows = [r for part in parts(dataset.settings["source"].value) for r in rows_of(view, part)]
        lengths = sorted(sum(len(str(value_at(row, keys))) for keys in columns) for row in rows)
        if columns and len(lengths) > 1:
            tokens = lengths[len(lengths) // 2] // CHARACTERS
            message = (
                f"prompts of `{dataset.name}` are cut to {most.value} tokens at their beginning, "
                f"and half of the rows that were read have at least {tokens}"
            )
            yield Number(value=most.value / max(1, tokens), span=place(most, dataset),
                         message=message)  # fmt: skip


def _recorded(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else None
    logging = view.program.singletons.get("logging")
    kept, disk = (logging.settings.get(k) if logging else None for k in RECORDS)
    if logging is None or kept is None or disk is None or not isinstance(steps, int):
        return
    if disk.value is None and kept.value is not None:
        count = steps if kept.value == "all" else min(steps, int(kept.value))
        message = f"{count} steps are recorded, and nothing limits the disk that they take"
        yield Number(value=float(count), span=place(disk, logging), message=message)


TRACES = (
    r"(?i)(^|[-_/])(open)?r1\b|[-_/]r1[-_]|reasoning|openthoughts|mixture-of-thoughts|stratos"
    r"|/s1k|/limo|long-?cot"
)
"""names of sets whose answers are reasoning traces, of thousands of tokens each"""


def _room_for_traces(view: View) -> Iterator[Number]:
    for dataset in view.program.datasets.values():
        source = dataset.settings["source"].value
        cut = _word_of(dataset.settings["on_long"]) == "truncate"
        name = str(source.args["id"]) if getattr(source, "name", "") == "hf" else ""
        chats = dataset.settings["chat"].value is not None
        for trainer in _trainers(view) if chats and cut and re.search(TRACES, name) else ():
            most = trainer.settings.get("batch.seq_len")
            if most is not None and isinstance(most.value, int):
                message = (
                    f"demonstrations of `{dataset.name}` are reasoning traces, and are cut to the "
                    f"{most.value} tokens of a row: the model does not learn how they end"
                )
                span = place(dataset.settings["on_long"], dataset)
                yield Number(value=float(most.value), span=span, message=message)


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
    if not view.program.environments:
        return
    from forgedsl.lint.environments import python_environments

    for env in python_environments(view):
        most = env.env.settings.get("max_observation")
        for tool in sorted(env.tools & env.methods.keys()) if most is not None else ():
            words = _words_before(env.methods[tool])
            if most is not None and words:
                message = (
                    f"`max_observation = {most.value}` keeps the first {most.value} tokens, but "
                    f"tool `{tool}` writes {words} words before its result"
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
    for trainer in _trainers(view):
        rate, rank = (trainer.settings.get(key) for key in ("optimizer.lr", "lora.rank"))
        if rate is None or rate.value <= 0 or (rank is not None and rank.value is not None):
            continue
        precision = trainer.settings.get("optimizer.precision")
        if precision is not None and _word_of(precision) == "bf16":
            message = (
                f"weights are stored in bf16, which loses updates below 0.4 % of a weight, and the "
                f"learning rate is {rate.value:g}"
            )
            yield Number(value=rate.value, span=place(precision, trainer), message=message)


def _scale_of_adapters(view: View) -> Iterator[Number]:
    for trainer in _trainers(view):
        rank, alpha = (trainer.settings.get(key) for key in ("lora.rank", "lora.alpha"))
        if rank is not None and alpha is not None and isinstance(rank.value, int) and rank.value:
            value = alpha.value / rank.value
            message = (
                f"the LoRA update is scaled by alpha / rank = {alpha.value:g} / {rank.value} = "
                f"{value:g}"
            )
            at = alpha if alpha.origin.span is not None else rank
            yield Number(value=value, span=place(at, trainer), message=message)


def _updates(view: View) -> Iterator[Number]:
    for step in view.steps if _samples(view) else ():
        epochs = step.settings["epochs"]
        message = f"each batch of samples is trained on {epochs.value} times"
        span = epochs.origin.span or step.span
        yield Number(value=float(epochs.value), span=span, message=message)


def _answers_of_an_eval(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else 0
    for each in view.program.evals.values() if (steps or 0) >= 2 * SEVERAL else ():
        limit = each.settings["limit"]
        if isinstance(limit.value, int):
            answers = limit.value * int(each.settings["sample.n"].value or 1)
            message = f"`{each.name}` scores {answers} answers, which differ by chance"
            yield Number(value=float(answers), span=place(limit, each), message=message)


def _evals_of_a_run(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else None
    for each in view.program.evals.values() if (steps or 0) >= SEVERAL / 2 else ():
        every = each.settings["every"]
        message = f"`{each.name}` runs every {every.value} steps, and the run has {steps}"
        yield Number(value=every.value / steps, span=place(every, each), message=message)


def _age(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    syncs = [s.settings["every"].value for s in view.program.flow if Role.TRANSFERS in s.roles]
    if schedule is None or schedule.label != "async" or any(every > 1 for every in syncs):
        return
    age = schedule.settings["max_policy_age"]
    if isinstance(age.value, int):
        message = f"samples may be {age.value} policy versions old"
        yield Number(value=float(age.value), span=place(age, schedule), message=message)


def _rare_syncs(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else None
    for step in view.program.flow:
        every = step.settings["every"] if Role.TRANSFERS in step.roles else None
        if every is None or not isinstance(steps, int) or every.value >= steps:
            continue  # A310 reports a run that ends before
        message = f"the sampler gets new weights every {every.value} steps"
        yield Number(value=float(every.value), span=every.origin.span or step.span, message=message)


def _stored_age(view: View) -> Iterator[Number]:
    for buffer in view.program.declared.get("buffer", {}).values():
        age = buffer.settings["max_age"]
        message = f"groups drawn from `{buffer.name}` may be {age.value} policy versions old"
        yield Number(value=float(age.value), span=place(age, buffer), message=message)


def _warmup(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else None
    for trainer in _trainers(view) if isinstance(steps, int) and steps >= SEVERAL else ():
        warmup = trainer.settings.get("optimizer.warmup")
        if warmup is not None and 0 < warmup.value < steps:  # A311 reports longer ones
            message = f"{warmup.value} of {steps} steps are warm-up"
            yield Number(value=warmup.value / steps, span=place(warmup, trainer), message=message)


def _warmup_of_epochs(view: View) -> Iterator[Number]:
    schedule, steps = view.program.schedule, _steps_of_epochs(view)
    for trainer in _trainers(view) if schedule is not None and steps else ():
        warmup = trainer.settings.get("optimizer.warmup")
        if warmup is not None and warmup.value > 0 and steps >= SEVERAL / 5:
            message = f"the warm-up takes {warmup.value} steps, and the whole run has {steps}"
            yield Number(value=warmup.value / steps, span=place(warmup, trainer), message=message)


def _steps_of_epochs(view: View) -> int:
    """Return the steps of a run that ends after some passes over a local file; 0 if they are not
    known."""
    schedule = view.program.schedule
    epochs = schedule.settings.get("epochs") if schedule is not None else None
    for step in view.program.flow if epochs is not None else ():
        dataset = view.program.datasets.get(step.receiver)
        drawn = step.settings.get("count")
        if dataset is None or drawn is None or not isinstance(drawn.value, int):
            continue
        rows = [row_count(view, part) for part in parts(dataset.settings["source"].value)]
        if rows and all(rows) and epochs is not None and epochs.value:
            return int(sum(rows) * epochs.value // drawn.value)
    return 0


def _turns_of_evals(view: View) -> Iterator[Number]:
    plays = [s.settings for s in view.program.flow if "env" in s.settings]
    most = {str(_word_of(s["env"])): s["max_turns"].value for s in plays if "max_turns" in s}
    for each in view.program.evals.values():
        turns, played = each.settings["max_turns"], most.get(_word_of(each.settings["env"]))
        env = view.program.environments.get(_word_of(each.settings["env"]))
        blind = turns.value == 1 and env is not None and (env.body.tools or env.body.served)
        if isinstance(turns.value, int) and isinstance(played, int) and not blind:  # D649
            message = (
                f"`{each.name}` plays {turns.value} {'turn' if turns.value == 1 else 'turns'}, but "
                f"training plays {played}, so it measures another game"
            )
            yield Number(value=turns.value / played, span=place(turns, each), message=message)


def _room_for_prompts(view: View) -> Iterator[Number]:
    plain = not any("env" in step.settings for step in view.program.flow)
    for trainer in _trainers(view) if plain and _samples(view) else ():
        row, most = trainer.settings.get("batch.seq_len"), view.max_tokens
        if row is not None and isinstance(row.value, int) and most is not None and row.value > most:
            message = (
                f"a row of `{trainer.name}` has {row.value} tokens, and an answer may take {most}: "
                f"that leaves {row.value - most} for the prompt"
            )
            yield Number(value=row.value - most, span=place(row, trainer), message=message)


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


RANGES = (
    *LOSS_RANGES,
    NumberRange(name="learning rate of LoRA", numbers=_rate_of_adapters, low=3e-6,
        source="TRL #2872, X-R1 #66: at 5e-7 and 1e-6 nothing was learned",
        help="`lr = 1e-4` to `4e-4`: adapters need ten to forty times the rate of full weights"),
    NumberRange(name="high learning rate of LoRA", numbers=_rate_of_adapters, high=5e-3,
        source="2106.09685 has 2e-4, recipes of peers up to 1e-3",
        help="`lr = 1e-4` to `4e-4`, at most 1e-3"),
    NumberRange(name="learning rate of full weights", numbers=_rate_of_weights, high=2e-4,
        source="hello-agents #770: already at 5e-5 the accuracy fell from 57 to 2 %",
        help="`lr = 1e-6`, at most 1e-5"),
    NumberRange(name="learning rate of a large model", numbers=_rate_of_large_models, high=5e-5,
        source="hello-agents #770: already at 5e-5 the accuracy fell from 57 to 2 %",
        help="`lr = 1e-6`, at most 1e-5"),
    NumberRange(name="learning rate of demonstrations", numbers=_rate_of_demonstrations, high=1e-3,
        source="recipes of SmolLM and Tulu have 5e-6 to 3e-4 for all weights",
        help="`lr = 1e-5` to `1e-4`"),
    NumberRange(name="alpha over rank", numbers=_scale_of_adapters, low=1 / 32, high=32.0,
        source="2106.09685 and recipes of peers: alpha is 1/4 to 4 times the rank",
        help="`alpha` near the rank, such as `lora { rank = 16, alpha = 32 }`"),
    NumberRange(name="rate in bf16", numbers=_rate_in_bf16, low=1e-5,
        source="AReaL #1634: a rate tuned with weights in bf16 was three times too high in f32",
        help="`precision = bf16_moments`, which keeps the weights in f32"),
    NumberRange(name="epochs", numbers=_updates, high=10.0,
        source="1707.06347 has 3 to 15 for control tasks; TRL has 4, verl and OpenRLHF 1",
        help="`epochs = 1` to 4, and more `minibatches`"),
    NumberRange(name="answers of an eval", numbers=_answers_of_an_eval, low=20.0,
        source="rllm #143: the standard error of a share of 8 answers is up to 0.18",
        help="`limit = 200`: a standard error of at most 0.035"),
    NumberRange(name="evals of a run", numbers=_evals_of_a_run, high=1.0,
        source="such a run is evaluated only before its first step",
        help="set `every` to about a tenth of `steps`"),
    NumberRange(name="policy age", numbers=_age, high=16.0,
        source="AReaL (2505.24298) bounds it at 8; slime #1800 trained on older ones",
        help="`max_policy_age = 1` to 8"),
    NumberRange(name="steps between syncs", numbers=_rare_syncs, high=16.0,
        source="AReaL (2505.24298) bounds the age of samples at 8; slime #1800",
        help="`every = 1` to 8"),
    NumberRange(name="age in a buffer", numbers=_stored_age, high=100.0,
        source="samples of a policy this old have ratios far from 1; replay_math has 12",
        help="`max_age` of at most some dozens"),
    NumberRange(name="warm-up", numbers=_warmup, high=0.5,
        source="prime-rl #968; published recipes warm up for 3 to 10 % of the steps",
        help="set `warmup` to 3 to 10 % of `steps`"),
    NumberRange(name="warm-up of passes over the rows", numbers=_warmup_of_epochs, high=0.9,
        source="prime-rl #968; published recipes warm up for 3 to 10 % of the steps",
        help="set `warmup` to 3 to 10 % of the steps"),
    NumberRange(name="turns of an eval", numbers=_turns_of_evals, low=1.0,
        source="a trajectory that is cut early says little about those of the training",
        help="use one parameter for both numbers of turns"),
    NumberRange(name="room for prompts", numbers=_room_for_prompts, low=4.0,
        source="Trinity-RFT #287: rows without room for their prompt are left out",
        help="raise `batch.seq_len`, or lower `max_tokens`"),
    NumberRange(name="learning rate of pairs", numbers=_rate_of_pairs, high=2e-5,
        source="LLaMA-Factory #7734: at 1e-4 the model repeats itself; 2305.18290 has 1e-6",
        help="`lr = 5e-7` to `5e-6`"),
    NumberRange(name="learning rate of Muon", numbers=_rate_of_muon, high=2e-3,
        source="Muon #49: 0.02 is the rate of updates that are not scaled",
        help="the learning rate that AdamW would have, or `adjust_lr = original`"),
    NumberRange(name="temperature", numbers=_temperature, low=0.1,
        source="ms-swift #4570: answers that are alike have advantages of 0",
        help="`temperature = 1.0`, for the trainer too"),
    NumberRange(name="room for reasoning", numbers=_room_for_reasoning, low=128.0,
        source="TRL #5697: answers that were cut had no gradient",
        help="`max_tokens = 1024`, or a prompt that asks for the answer alone"),
    NumberRange(name="room in an eval", numbers=_room_in_evals, low=0.25,
        source="TRL #5697: answers that are cut say nothing about those that are not",
        help="leave `sample.max_tokens` out: it is the sampler's then"),
    NumberRange(name="room for traces", numbers=_room_for_traces, low=4096.0,
        source="2501.19393 (s1): traces have 4700 tokens on average; without their end no answer",
        help="`on_long = drop`, and a `batch.seq_len` of 8192 or more"),
    NumberRange(name="room for the rows", numbers=_room_for_rows, low=1.0,
        source="LLaMA-Factory #3143: what is cut is the beginning of the prompt",
        help="a larger `max_prompt_tokens`, or `on_long = drop`"),
    NumberRange(name="recorded steps", numbers=_recorded, high=500.0,
        source="a step of 256 answers of some thousand tokens takes megabytes",
        help="`record { steps = 20, disk = 1GiB }`, which keeps the last ones"),
    NumberRange(name="room for the question", numbers=_room_for_question, low=8.0,
        source="LLaMA-Factory #3143: what is cut is the beginning of the prompt",
        help="`max_prompt_tokens = 512`, or `on_long = drop`"),
    NumberRange(name="length of an observation", numbers=_cut_observations, low=1.0,
        source="verl #6313: the end of a tool's answer was cut off",
        help="a larger `max_observation`, or a tool that answers with the value alone"),
)  # fmt: skip
