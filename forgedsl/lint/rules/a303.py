"""A303 off-policy-without-ratio: samples come from another policy, and the loss has no ratio to it.

Under `schedule async`, or if weights are not synced after every step, a batch can be sampled by
weights that are one or more steps old. Samples drawn from a `buffer` always are. An engine that
quantizes its KV cache (`engine.kv_dtype`) or its weights (`engine.weight_dtype`) to fp8 is another
policy too, even with the newest weights. A loss that never reads `behavior`, the sampler's
log-probs, treats these tokens as if the current policy had sampled them, so its gradient is biased.
torchforge's first GRPO did this (`exp(lp - lp.detach())` is always 1), as did miles #1829 and slime
#1800.

    loss pg(logprob: diff [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
      minimize token_mean(-logprob * adv, mask)            # fires under schedule async
    }
    minimize token_mean(-exp(clamp(logprob - behavior, -10.0, 10.0)) * adv, mask)       # silent

Multiply by `exp(clamp(logprob - behavior, -10.0, 10.0))`, or use `schedule sync` and sync after
every step. Completions of a model that is not trained do not age. If you accept the bias, write
`# forge: allow[A303] reason`.
"""

from itertools import product

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Decl, model_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import lower_bounded_ratio
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View, place

finding = rule(__doc__, "D")
QUANTIZED = {"engine.kv_dtype": "keys and values", "engine.weight_dtype": "weights"}
RATIOS = (0.3, 0.9, 1.0, 1.1, 3.0)


def _corrects(loss: LossView) -> bool:
    """True if the ratio to the sampler changes the gradient, or which tokens are masked out."""
    if "logprob" not in loss.read or loss.is_pairs:
        return True
    learns = False
    for weight, distance in product((1.0, -1.0), (0.0, 0.7)):
        at = (loss.slope(weight=weight, distance=distance, ratio=r) for r in RATIOS)
        slopes = [*at]
        if max(slopes) - min(slopes) > 1e-9:
            return True
        learns = learns or max(map(abs, slopes)) > 1e-9
    return not learns


def check(view: View) -> Findings:
    for loss in view.losses:
        why = _replayed(loss) or _stale(view) or _rounded(view, loss) or _other_dtype(view, loss)
        corrected = "behavior" in loss.read and loss.cached(_corrects)
        corrected = corrected or loss.cached(lower_bounded_ratio) is not None  # L436 says more
        if why is None or not loss.samplers or corrected or (loss.updates > 1 and not loss.older):
            continue  # several updates per step are reported by L431, which says more
        what, label, remedy = why
        yield finding(
            f"loss `{loss.name}` ignores that {what}",
            loss.place,
            related=(label,),
            help=f"weight by exp(clamp(logprob - behavior, -10.0, 10.0)), or {remedy}",
        )


def _replayed(loss: LossView) -> tuple[str, Label, str] | None:
    if not loss.recalls:
        return None
    drawn = loss.recalls[0]
    label = Label(text="rollouts of steps before", span=drawn.span)
    what = f"`{drawn.name}` was sampled by older weights, and drawn from `{drawn.receiver}`"
    return what, label, "do not train this loss on groups from the buffer"


def _stale(view: View) -> tuple[str, Label, str] | None:
    if view.stale_span is None:
        return None
    label = Label(text="rollouts may be stale", span=view.stale_span)
    remedy = "sync after every step of a `schedule sync`"
    return "rollouts may be older than the weights", label, remedy


def _rounded(view: View, loss: LossView) -> tuple[str, Label, str] | None:
    for step in loss.samplers:
        service = view.program.services[step.receiver]
        for key, what in QUANTIZED.items():
            value = service.settings.get(key)
            if value is not None and value.value == "fp8":
                label = Label(text=f"{what} are quantized to fp8", span=place(value, service))
                message = f"`{service.name}` is another policy than the trained one"
                return message, label, f"leave `{key}` out"
    return None


def _other_dtype(view: View, loss: LossView) -> tuple[str, Label, str] | None:
    trainer = view.program.services[loss.step.receiver] if loss.step is not None else None
    for step in loss.samplers if trainer is not None else ():
        service = view.program.services[step.receiver]
        spans = [each.settings["dtype"].origin.span for each in (service, trainer) if each]
        given = next((span for span in spans if span is not None), None)
        ours, theirs = (_dtype(view, each) for each in (trainer, service))
        if given is not None and ours != theirs and {ours, theirs} & {"f16", "bf16"}:
            label = Label(text=f"`{theirs}` in the sampler, `{ours}` in the trainer", span=given)
            message = f"`{service.name}` computes in {theirs}, and the trainer in {ours}"
            return message, label, "leave `dtype` out: both have the model's"
    return None


def _dtype(view: View, service: Decl | None) -> str:
    """Return the dtype in which a service computes: its own, else that of its model."""
    assert service is not None
    own = service.settings["dtype"].value
    value = (
        own if own is not None else view.program.models[model_of(service)].settings["dtype"].value
    )
    return str(getattr(value, "name", value))
