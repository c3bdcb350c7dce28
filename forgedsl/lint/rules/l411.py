"""L411 measure-mismatch: a ratio of log-probs at different temperatures or over different tokens.

Log-probs of sampler and trainer can be compared only at the same temperature and over the same set
of tokens. Otherwise the ratio is not 1 for equal weights: with temperatures 0.6 and 1.0, TRL #4159
saw ratios of 2. Use one temperature for both. A sampler that truncates at the right temperature is
D601.

    service trainer   : titan(policy) { ... }                           # temperature 1.0
    service generator : vllm(policy)  { sampling { temperature = 0.8, top_p = 0.95, ... } }
    ratio = exp(clamp(logprob - behavior, -10.0, 10.0))                 # fires
    ratio = exp(clamp(logprob - behavior, -10.0, 10.0))                 # silent at one temperature

A loss without a ratio must use log-probs at the temperature of sampling. At another temperature
they belong to another policy, and nothing corrects the bias.

    service generator : vllm(policy)  { sampling { temperature = 0.6 } }
    trainer.step(batch, loss = rl.reinforce)                            # fires: learned at 1.0

The measure of a log-prob is (model, temperature, set of tokens). The rule takes it from the flow
(`behavior` from the sampler, `logprob` and recomputed log-probs from the trainer, `ref` from the
reference), and tracks it through the whole expression.
"""

from __future__ import annotations

from pathlib import PurePath

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label
from forgedsl.ir.program import Decl, Value
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View, place
from forgedsl.losses.measures import Mismatch, forms_of, mismatches
from forgedsl.records import dataclass
from forgedsl.services.registry import kind_of
from forgedsl.source import Span
from forgedsl.types.measures import FULL, Form, Measure

finding = rule(__doc__, "D")
TRUNCATION = {"top_p": 1.0, "top_k": None, "min_p": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The service of a measure, and the settings that determine it."""

    service: Decl
    settings: dict[str, Value]

    @property
    def temperature(self) -> Value:
        return self.settings["temperature"]


def check(view: View) -> Findings:
    for loss in view.losses:
        if loss.step is None:
            continue
        seen: set[tuple[Measure, Measure]] = set()
        names = dict.fromkeys(step.receiver for step in loss.samplers)
        samplers = [view.program.services[name] for name in names]
        for sampler in samplers or (None,):
            sources = _sources(view, loss, sampler)
            fields = {name: _measure(name, source) for name, source in sources.items()}
            for found in _mismatches(loss, fields):
                if found.left.temperature == found.right.temperature:
                    continue  # truncated sampling is D601
                if (found.left, found.right) not in seen:
                    seen |= {(found.left, found.right), (found.right, found.left)}
                    yield _report(view, loss, found, sources, fields)
        yield from _unweighted(view, loss, samplers)


def _mismatches(loss: LossView, fields: dict[str, Measure]) -> list[Mismatch]:
    """Return the comparisons of a loss; cached for all losses with its structure and measures."""
    answers, key = loss.facts.answers, (mismatches, *fields.items())
    if key not in answers:
        answers[key] = mismatches(loss.tree, fields)
    found: list[Mismatch] = answers[key]
    return found


def _unweighted(view: View, loss: LossView, samplers: list[Decl]) -> Findings:
    """Yield a finding for a policy gradient without ratio whose temperature is not that of
    sampling."""
    assert loss.step is not None
    trainer = view.program.services[loss.step.receiver]
    ours = trainer.settings["temperature"]
    for sampler in samplers if not loss.older and loss.cached(_is_gradient) else ():
        theirs = sampler.settings["sampling.temperature"]
        same = theirs.value in (0, ours.value)  # 0 is D602
        if not same and sampler.ctor_args[0].name == trainer.ctor_args[0].name:
            yield finding(
                f"answers are sampled at temperature {theirs.value:g}, but `{loss.name}` uses "
                f"log-probs at temperature {ours.value:g}",
                place(theirs, sampler),
                related=(Label(text="is minimized", span=loss.place),),
                help=f"use one temperature, or set `{trainer.name}.temperature`",
            )


def _is_gradient(loss: LossView) -> bool:
    """True if good completions get more likely, and bad ones less likely."""
    return (
        not loss.is_pairs
        and "logprob" in loss.read
        and any(name in loss.read for name in loss.fields("weight"))
        and loss.gain(weight=1.0) < -1e-9 < 1e-9 < loss.gain(weight=-1.0)
    )


# ---- measures of fields


def _sources(view: View, loss: LossView, sampler: Decl | None) -> dict[str, Source]:
    """Return the sources of the log-prob fields of a loss."""
    assert loss.step is not None
    services = view.program.services
    found = {"logprob": _titan(services[loss.step.receiver])}
    if sampler is not None and sampler.settings["sampling.temperature"].value:  # 0 is D602
        names = ("temperature", *TRUNCATION)
        settings = {name: sampler.settings[f"sampling.{name}"] for name in names}
        found["behavior"] = Source(service=sampler, settings=settings)
    for name, step in loss.bound.items():
        if step.is_logprobs:
            found[name] = _titan(services[step.receiver])
    return found


def _titan(service: Decl) -> Source:
    return Source(service=service, settings={"temperature": service.settings["temperature"]})


def _measure(name: str, source: Source) -> Measure:
    cut = [
        f"{key}={source.settings[key].value:g}"
        for key, full in TRUNCATION.items()
        if key in source.settings and source.settings[key].value != full
    ]
    return Measure(
        model=source.service.ctor_args[0].name,
        temperature=float(source.temperature.value),
        support=", ".join(cut) or FULL,
        source=name,
    )


# ---- the message


def _report(
    view: View,
    loss: LossView,
    found: Mismatch,
    sources: dict[str, Source],
    fields: dict[str, Measure],
) -> Diagnostic:
    left, right = sources[found.left.source], sources[found.right.source]
    other, ours = (left, right) if found.left.source == "behavior" else (right, left)
    same_support = found.left.support == found.right.support
    if same_support:
        note = "at different temperatures the ratio is not 1 even for equal weights"
        remedy = f"use one temperature, or set `{ours.service.name}.temperature`"
    else:
        note = (
            "the sampler renormalizes over the kept tokens, so the ratio is not 1 even for equal "
            "weights"
        )
        remedy = (
            f"sample from the full vocabulary at the {ours.service.name}'s temperature, "
            f"or set `{ours.service.name}.temperature`"
        )
    spot = loss.spot(found.node)
    return finding(
        "log-probabilities come from different measures",
        spot,
        related=_labels(view, loss, found, sources, fields, spot.span),
        notes=(note,),
        help=remedy,
        fix=_fix(other, ours),
    )


def _labels(
    view: View,
    loss: LossView,
    found: Mismatch,
    sources: dict[str, Source],
    fields: dict[str, Measure],
    where: Span,
) -> tuple[Label, ...]:
    """Return a label for each operand that is written inside the span `where`."""
    forms = forms_of(loss.tree, fields)
    labels = []
    for measure in (found.left, found.right):
        text = f"{measure}\t({_whence(view, sources[measure.source])})"
        span = _operand(loss, forms, measure, where)
        if span is not None:
            labels.append(Label(text=text, span=span))
    return tuple(sorted(labels, key=lambda label: label.span.start))


def _operand(
    loss: LossView, forms: list[Form | None], measure: Measure, where: Span
) -> Span | None:
    """Return the name inside a span that has a given measure."""
    for span, value in loss.located.names.items():
        form = forms[value]
        inside = span.file == where.file and where.start <= span.start and span.end <= where.end
        if inside and form is not None and set(form.terms) == {measure}:
            return span
    return None


def _whence(view: View, source: Source) -> str:
    """Return where a measure was set: `generator.sampling, line 39`, `trainer`, or an override."""
    name = source.service.name + _prefix(source)
    written = [v for v in source.settings.values() if v.origin.layer != "default"]
    if not written:
        return name
    origin = written[0].origin
    if origin.layer in ("set", "set-file") or origin.span is None:
        return f"{name}, {origin.detail}"
    line = view.sources[origin.span.file].position(origin.span.start)[0]
    other = origin.span.file != view.program.file
    file = f"{PurePath(origin.span.file).name} " if other else ""
    return f"{name}, {file}line {line}"


def _prefix(source: Source) -> str:
    """Return `.sampling` if the settings of the measure are in that block."""
    measure = kind_of(source.service.ctor).measure.rstrip(".")
    return f".{measure}" if measure else ""


def _fix(other: Source, ours: Source) -> Fix | None:
    """Return the fix that sets the sampler (or reference) to the trainer's values, if they are
    written in the file."""
    wanted = {**TRUNCATION, "temperature": float(ours.temperature.value)}
    edits, changes = [], []
    for key in ("top_p", "top_k", "min_p", "temperature"):
        value = other.settings.get(key)
        if value is None or value.value == wanted[key] or value.origin.span is None:
            continue
        text = "none" if wanted[key] is None else str(wanted[key])
        edits.append(Edit(text=text, span=value.origin.span))
        changes.append(f"{key} {value.value} -> {text}")
    if not edits:
        return None
    prefix = f"{other.service.name}{_prefix(other)}."
    return Fix(message=prefix + ", ".join(changes), edits=tuple(edits), safe=False)
