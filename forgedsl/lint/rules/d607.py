"""D607 stop-tokens: a stop string that no answer can contain.

The model's own end tokens always end a completion. `stop` adds strings, which are searched in the
text of the completion. Special tokens do not appear in that text, so the end token of another model
family is never found, and completions run on to `max_tokens` (TRL #7039). Remove it.

    sampling { stop = ["<|eot_id|>"], ... }          # fires for qwen3, which ends with <|im_end|>
    sampling { stop = ["\\nQuestion:"], ... }        # silent

`lint --deep` also reads the end tokens and special tokens of a local model.
"""

from forgedsl.diagnostics import Diagnostic
from forgedsl.families.registry import end_tokens, family
from forgedsl.ir.program import Constructor, Decl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.models import arch_of
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    known = set(end_tokens())
    for service in view.samplers():
        arch = arch_of(view.program.models[service.ctor_args[0].name])
        if isinstance(arch, Constructor):
            yield from never(service, family(arch.name).ends, known)


def never(service: Decl, ends: tuple[str, ...], special: set[str]) -> list[Diagnostic]:
    """Return a finding for each stop string that is a special token but no end token of the
    model."""
    stop = service.settings["sampling.stop"]
    texts = stop.value if isinstance(stop.value, list) and ends else []
    return [
        finding(
            f"the text of an answer of `{service.name}` never contains `{text}`, so it stops "
            "nothing",
            place(stop, service),
            help=f"leave it out: an answer always ends at {', '.join(f'`{e}`' for e in ends)}",
        )
        for text in texts
        if text in special and text not in ends
    ]
