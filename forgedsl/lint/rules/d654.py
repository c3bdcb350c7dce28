"""D654 markers-of-another: a chat template with the turn markers of another model family.

    model policy { source = hf("Qwen/Qwen3-4B"), chat_template = "...<|eot_id|>..." }       # fires
    model policy { source = hf("Qwen/Qwen3-4B"), chat_template = "...<|im_end|>..." }       # silent

If a marker is not a token of the vocabulary, it is split into ordinary tokens: the model sees no
turns. It also ends its own turns with a token that the template never writes (LLaMA-Factory #5834).
Leave `chat_template` out, so that the model's own is used, or write its markers. The rule knows the
families that `forgec` trains, and reports a template only if it has none of the model's own end
tokens.
"""

from forgedsl.families.registry import end_tokens, family
from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.models import arch_of
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")
SHARED = ("<|endoftext|>", "</s>")
"""end tokens that many vocabularies have"""


def check(view: View) -> Findings:
    markers = {end: name for end, name in end_tokens().items() if end not in SHARED}
    for model in view.program.models.values():
        template, arch = model.settings["chat_template"], arch_of(model)
        text, source = template.value, model.settings["source"].value
        if not isinstance(text, str) or not isinstance(arch, Constructor):
            continue
        if getattr(source, "name", "") != "hf":
            continue  # a local model may have tokens that were added
        own = family(arch.name).ends
        alien = next((end for end in markers if end in text and end not in own), "")
        if own and alien and not any(end in text for end in own):
            yield finding(
                f"this template ends turns with `{alien}`, a token of {markers[alien]} and not of "
                f"{arch.name}",
                place(template, model),
                help=f"leave `chat_template` out: the model brings its own, with `{own[0]}`",
            )
