"""N906 unusual-value: a number that means something, and that nobody wants.

    optimizer { lr = 2 }                  # fires: the largest that is usual is 0.1
    sampling { temperature = 50 }         # fires
    optimizer { lr = 1e-6 }               # silent

What is usual stands beside the type of a setting, in the schema. A value without any meaning,
as a temperature below zero, is an error (F113).
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.schema import KINDS, SERVICES

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    program = view.program
    decls = [*program.models.values(), *program.datasets.values(), *program.services.values(),
             *program.evals.values(), *program.singletons.values()]  # fmt: skip
    decls += [program.schedule] if program.schedule is not None else []
    for decl in decls:
        kind = SERVICES[str(decl.ctor)] if decl.kind == "service" else KINDS[decl.kind]
        for name, setting in decl.settings.items():
            known, value = kind.setting(name), setting.value
            usual = known.type.usual if known is not None else None
            if usual is None or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not usual[0] <= value <= usual[1]:
                yield finding(
                    f"`{name} = {value:g}` is unusual",
                    place(setting, decl),
                    help=f"usual is {usual[0]:g} to {usual[1]:g}",
                )
