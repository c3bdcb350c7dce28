"""L421 dead-term: a KL or an entropy is part of the loss, but not of its gradient.

Under `stop`, a term changes the logged number and nothing else: the policy is not held to its
reference. The estimate must depend on `logprob` with gradient. NeMo-RL #2506 had a KL without
effect.

    minimize token_mean(pg + beta * stop(kl), mask)                          # fires
    kl = rl.k3(stop(logprob), ref)                                           # fires
    ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
    minimize token_mean(-ratio * (adv - beta * stop(logprob - ref)), mask)   # silent: in the reward

The rule also fires if the loss declares log-probs of a reference and never reads them. It fires if
the loss only reports the reference, and takes its KL to `behavior` instead: over many steps this
limits nothing, because the sampler gets the new weights. It fires for a difference of a value and
itself, and for a coefficient that is added instead of multiplied.

The rule evaluates the derivative for a token at many points. It fires if the derivative never
depends on the reference (or the entropy), although the loss does. To monitor a KL without training
on it, `report` it.
"""

from collections.abc import Iterator
from itertools import product

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Function
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View
from forgedsl.losses.tree import REDUCTIONS
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

finding = rule(__doc__, "D")
ENTROPIES = 0.1, 0.5, 2.0


def check(view: View) -> Findings:
    for loss in view.losses:
        if name := _unread(view, loss):
            yield finding(
                f"`{loss.name}` never reads `{name}`, which the flow computes for it",
                loss.spot(loss.tree.output("loss")),
                related=(Label(text="for nothing", span=loss.bound[name].span),),
                help="add its KL, or leave the reference out",
            )
        elif loss.step is not None and (name := _reported(loss)):
            yield finding(
                f"this loss takes its KL to the sampler, which gets the new weights, and only "
                f"reports `{name}`",
                loss.spot(loss.tree.output("loss")),
                related=(Label(text="the reference", span=loss.bound[name].span),),
                notes=("the weights of the sampler are replaced by the trained ones, so the policy "
                       "can move any distance in small steps",),
                help=f"take the KL to `{name}`",
            )  # fmt: skip
        for twice in _differences(view, loss.function):
            yield finding(
                "both sides of this difference are the same: it is 0",
                twice.span,
                help="`logprob - ref`: the policy, and what it is compared with",
            )
        number = _number(loss)
        if number is not None:
            yield finding(
                "this adds a number to the loss that has no gradient",
                loss.spot(number),
                help="if it is a coefficient, multiply: `beta * kl`",
            )
        for what, node in loss.cached(_dead):
            yield finding(
                f"the {what} in this loss has no gradient",
                loss.spot(node),
                notes=("it changes what is logged and not what is learned",),
                help="take it out of `stop`, or `report` it",
            )


def _unread(view: View, loss: LossView) -> str:
    """Return the log-probs of a reference that the flow computes for a loss that never names them,
    not even with weight 0."""
    declared = {field.name for field in loss.function.fields}
    named = {part for parts in view.shared.names(loss.function) for part in parts}
    for name, asked in loss.bound.items():
        trained = loss.step is not None and asked.receiver == loss.step.receiver
        if asked.is_logprobs and not trained and name in declared - named:
            return name
    return ""


def _reported(loss: LossView) -> str:
    """Return the reference that is read only by reports, if the loss has a divergence to the
    sampler in its place."""
    references = loss.fields("reference")
    if loss.is_pairs or not references or any(name in loss.read for name in references):
        return ""
    bound = next((name for name in references if name in loss.bound), "")
    return bound if bound and loss.cached(_held_to_sampler) else ""


def _held_to_sampler(loss: LossView) -> bool:
    """True if without an advantage tokens are still pulled back to their log-prob under the
    sampler."""
    if not loss.older or not any(name in loss.read for name in loss.fields("weight")):
        return False
    above, below = (loss.slope(weight=0.0, ratio=ratio) for ratio in (1.5, 0.7))
    return above > 0 > below


def _differences(view: View, function: Function) -> list[ast.Binary]:
    """Return the differences of an expression and itself in a body, the same in all views."""
    key = (_differences, function.span)
    if key not in view.shared.answers:
        view.shared.answers[key] = list(_twice(view, function))
    found: list[ast.Binary] = view.shared.answers[key]
    return found


def _twice(view: View, function: Function) -> Iterator[ast.Binary]:
    source = view.sources.get(function.span.file)
    text = source.text if source is not None else ""
    for node in walk(function.statements) if text else ():
        if isinstance(node, ast.Binary) and node.operator == "-":
            left, right = node.left.span, node.right.span
            if text[left.start : left.end] == text[right.start : right.end]:
                yield node


def _number(loss: LossView) -> int | None:
    """Return a parameter that is a summand of the loss."""
    values, pending = loss.tree.values, [loss.tree.output("loss")]
    while pending:
        value, chain = values[node := pending.pop()], loss.located.chains[node]
        if value.op == "const" and value.attr and chain and isinstance(chain[0], ast.Path):
            return node
        if value.op in REDUCTIONS or value.op in ("div", "expand", "neg"):
            pending.append(value.args[0])
        elif value.op in ("add", "sub"):
            pending += value.args
    return None


def _dead(loss: LossView) -> tuple[tuple[str, int], ...]:
    """Return the fields that the loss reads and its gradient does not, with their values."""
    found = []
    references = [name for name in loss.fields("reference") if name in loss.read]
    if references and not loss.is_pairs and _is_dead(loss, "logprob", "distance", (-1.0, 0.5, 2.0)):
        stopped = loss.dominator(references, lambda n: not loss.tree.values[n].type.diff)
        found.append(("KL", stopped))
    dead = "entropy" in loss.read and _is_dead(loss, "entropy", "entropy", ENTROPIES)
    if dead and not _chooses(loss):
        stopped = loss.dominator(["entropy"], lambda n: not loss.tree.values[n].type.diff)
        found.append(("entropy", stopped))
    return tuple(found)


def _chooses(loss: LossView) -> bool:
    """True if the entropy selects or weights the tokens that learn (2506.01939)."""
    for weight in (1.0, -1.0):
        slopes = [loss.slope(weight=weight, entropy=entropy) for entropy in ENTROPIES]
        if max(slopes) - min(slopes) > 1e-12:
            return True
    return False


def _is_dead(loss: LossView, wrt: str, name: str, values: tuple[float, ...]) -> bool:
    """True if no derivative depends on the field; for the entropy, if its own derivative is 0."""
    for weight, ratio in product((0.0, 1.0, -1.0), (1.0, 0.7, 1.6)):
        slopes = [
            loss.slope(weight=weight, ratio=ratio, wrt=wrt, **{name: number}) for number in values
        ]
        if max(slopes) - min(slopes) > 1e-12 or (wrt == "entropy" and max(map(abs, slopes)) > 0):
            return False
        if weight == 0.0 and ratio == 1.0 and abs(slopes[0]) > 1e-12:
            return False  # an estimate of constant slope is L408
    return True
