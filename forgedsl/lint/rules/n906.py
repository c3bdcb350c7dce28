"""N906 unusual-value: a valid number that is probably a mistake.

    optimizer { lr = 2 }                  # fires: the largest that is usual is 0.1
    sampling { temperature = 50 }         # fires
    loss = rl.ppo(entropy_coef = 1.0)     # fires: larger than the advantage's term
    optimizer { lr = 1e-6 }               # silent

Such a run trains badly or not at all. Check the number. The schema states the usual range of a
setting; a table of this rule has those of parameters of the standard library. A value without
meaning, such as a negative temperature, is an error (F113).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forgedsl.ir.program import Function
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import STANDARD
from forgedsl.lint.view import View, place
from forgedsl.schema import KINDS, SERVICES
from forgedsl.settings import Kind
from forgedsl.source import Span

finding = rule(__doc__, "W")
INF = float("inf")
USUAL = {
    "entropy_coef": (-INF, 0.1), "dual_clip": (1.5, 20.0), "max_weight": (1.0, 100.0),
    "min_weight": (0.0, 1.0), "grpo.beta": (-INF, 1.0), "dppo.beta": (-INF, 0.1),
    "dpo.beta": (-INF, 10.0), "ipo.beta": (-INF, 10.0), "sft.label_smoothing": (0.0, 0.5),
    "z_loss": (0.0, 0.01), "value_coef": (0.0, 2.0), "value_clip": (0.01, 10.0),
    "tau_pos": (0.1, 20.0), "tau_neg": (0.1, 20.0),
    "horizon": (16.0, 1e6),
}  # fmt: skip
"""usual ranges of parameters of the library (bounds of ratios are L424, wrong signs L420)"""


def check(view: View) -> Findings:
    program = view.program
    decls = [*program.models.values(), *program.datasets.values(), *program.services.values(),
             *program.evals.values(), *program.singletons.values()]  # fmt: skip
    decls += [program.schedule] if program.schedule is not None else []
    for decl in decls:
        kind = SERVICES[str(decl.ctor)] if decl.kind == "service" else KINDS[decl.kind]
        for name, usual in _ranges(kind):
            setting = decl.settings.get(name)
            value = setting.value if setting is not None else None
            if setting is None or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            yield from _unusual(name, value, *usual, place(setting, decl))
    for function, name, value, span in _given(view):
        low, high = USUAL.get(f"{function}.{name}") or USUAL.get(name) or (-INF, INF)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield from _unusual(name, value, low, high, span)


_known: dict[int, tuple[Kind, list[tuple[str, tuple[float, float]]]]] = {}
"""settings with a usual range, by the id of their kind; the kind is kept so that its id stays in
use"""


def _ranges(kind: Kind) -> list[tuple[str, tuple[float, float]]]:
    """Return the settings of a kind that have a usual range, with the range."""
    if id(kind) not in _known:
        found = ((setting.name, setting.type.usual) for setting in kind.settings)
        _known[id(kind)] = kind, [(name, usual) for name, usual in found if usual is not None]
    return _known[id(kind)][1]


def _unusual(name: str, value: float, low: float, high: float, span: Span) -> Findings:
    if not low <= value <= high:
        usual = f"{low:g} to {high:g}" if low > -INF else f"up to {high:g}"
        yield finding(f"`{name} = {value:g}` is unusual", span, help=f"usual is {usual}")


def _given(view: View) -> Iterator[tuple[str, str, Any, Span]]:
    """Yield (function, parameter, value, span) for arguments of library functions."""
    for name, function in view.program.functions.items():
        if not function.module.startswith("std/"):
            continue
        known = (f for f in function.scope.names.values() if isinstance(f, Function))
        word = next((f.name for f in known if f.span == function.span), function.name)
        for field in function.fields:
            default = field.default
            if default is not None and not default.span.file.startswith(STANDARD):
                yield word, field.name, getattr(default, "value", None), default.span
        for step in view.program.flow:
            for key, setting in step.settings.items() if step.receiver == name else ():
                yield word, key, setting.value, setting.origin.span or step.span
