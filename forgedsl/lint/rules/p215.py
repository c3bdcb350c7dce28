"""P215 unread-config: family and sizes of a hub model are unknown until its config.json is read.

    model policy { source = hf("somebody/tuned-4b") }                         # fires
    model policy { source = hf("somebody/tuned-4b"), arch = qwen3("4B") }     # silent

ForgeDSL knows published models by name. For other names, family and sizes are read from config.json
at the launch, which refuses unsupported families. Until then `plan` cannot estimate memory. Declare
`arch`. `lint --deep` and `run --dry-run` read config.json if it is in the cache.
"""

from forgedsl.families import registry
from forgedsl.families.base import Unsupported
from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "I")


def check(view: View) -> Findings:
    for model in view.program.models.values():
        arch, source = model.settings["arch"].value, model.settings["source"].value
        if isinstance(arch, Constructor) or getattr(source, "name", "") != "hf":
            continue
        name = str(source.args["id"])
        if not _is_known(name):
            yield finding(
                f"the architecture of `{name}` is unknown until its config.json is read at launch",
                source.span,
                help='declare `arch`, such as `qwen3("4B")`; `lint --deep` reads the cache',
            )


def _is_known(name: str) -> bool:
    try:
        return registry.by_hub_name(name) is not None
    except Unsupported:  # an unsupported model is P213
        return True
