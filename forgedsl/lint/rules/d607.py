"""D607 stop-tokens: the sampler stops at one of several end tokens of the model.

A chat model ends an answer with one token and a text with another; a sampler that knows one of them
runs on to `max_tokens` after the other, and the rollout counts as truncated (TRL #7039).

    sampling { stop = ["<|im_end|>"], ... }          # fires for qwen3, which also has <|endoftext|>

Leave `stop` out: it is then the model's. `lint --deep` reads the end tokens of a local model.
"""

from forgedsl.diagnostics import Edit, Fix
from forgedsl.families.registry import family
from forgedsl.hir.ir import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for service in view.samplers():
        model = view.program.models[service.ctor_args[0].name]
        arch, stop = model.settings["arch"].value, service.settings["sampling.stop"]
        if not isinstance(arch, Constructor) or not isinstance(stop.value, list):
            continue
        ends = family(arch.name).ends
        missing = [end for end in ends if end not in stop.value]
        if not missing or len(missing) == len(ends):
            continue
        span = place(stop, service)
        text = "[" + ", ".join(f'"{s}"' for s in (*stop.value, *missing)) + "]"
        fix = Fix(message=f"stop at {text}", edits=(Edit(text=text, span=span),), safe=False)
        yield finding(
            f"`{service.name}` does not stop at {', '.join(f'`{m}`' for m in missing)}",
            span,
            help="name all end tokens of the model, or leave `stop` out",
            fix=fix if stop.origin.span is not None else None,
        )
