"""D610 tokenizer-mismatch: log-probs of models that do not share a vocabulary are compared.

A reference or a reward model reads the token ids that the policy sampled. With another tokenizer,
token 1234 is another word, and its log-prob is meaningless. See TRL #4562.

    model policy  { source = hf("Qwen/Qwen3-4B"), arch = qwen3("4B") }
    model teacher { source = hf("meta-llama/Llama-3.1-8B"), arch = llama3("8B") }
    ref_lp = reference.logprobs(rollout)                                     # fires
    model teacher { source = hf("Qwen/Qwen3-8B"), arch = qwen3("8B") }       # silent

    model policy { source = hf("Qwen/Qwen3-4B"), tokenizer = hf("meta-llama/Llama-3.2-1B") } # fires

Use a model of the same family, or one with the same `tokenizer`.
"""

import re

from forgedsl.diagnostics import Label
from forgedsl.families.base import Unsupported
from forgedsl.families.registry import by_hub_name, family
from forgedsl.hir.judges import scorer_of
from forgedsl.ir.program import Constructor, Decl, model_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.models import arch_of
from forgedsl.lint.view import View, place
from forgedsl.types.flow import Role

finding = rule(__doc__, "E")
NAMED = (
    "qwen", "llama2", "llama3", "mistral", "gemma", "phi3", "phi4", "deepseek", "smollm2",
    "smollm3", "olmo", "falcon", "gpt2", "pythia", "granite", "glm4", "seedoss", "gptoss",
)  # fmt: skip
"""names of models that have a vocabulary of their own"""


def check(view: View) -> Findings:
    program = view.program
    yield from _own(view)
    sampler = next(view.samplers(), None)
    if sampler is None:
        return
    ours = program.models[sampler.ctor_args[0].name]
    asked = [(s.receiver, s.span) for s in program.flow if Role.MEASURES in s.roles]
    scorers = [scorer for r in program.rewards.values() if (scorer := scorer_of(r)) is not None]
    asked += [(scorer.args["service"], scorer.span) for scorer in scorers]
    for service, span in asked:
        theirs = program.models[model_of(program.services[service])]
        why = _difference(ours, theirs)
        if theirs.name != ours.name and why:
            yield finding(
                f"`{service}` reads tokens of another vocabulary: {why}",
                span,
                related=(
                    Label(text="samples the tokens", span=ours.name_span),
                    Label(text="scores them", span=theirs.name_span),
                ),
                help="use a model with the policy's tokenizer",
            )


def _own(view: View) -> Findings:
    """Yield findings for models whose own tokenizer is one of another family."""
    for model in view.program.models.values():
        tokenizer, arch = model.settings["tokenizer"].value, arch_of(model)
        if getattr(tokenizer, "name", "") != "hf" or not isinstance(arch, Constructor):
            continue
        yield from _named(model, str(tokenizer.args["id"]), arch.name)
        try:
            known = by_hub_name(str(tokenizer.args["id"]))
        except Unsupported:
            continue
        if known is not None and known[0].tokenizer != family(arch.name).tokenizer:
            yield finding(
                f"model `{model.name}` is of family {arch.name}, but its tokenizer is of "
                f"{known[0].name}: the same token ids mean other words",
                place(model.settings["tokenizer"], model),
                help="leave `tokenizer` out: a model brings its own",
            )


def _named(model: Decl, tokenizer: str, arch: str) -> Findings:
    """Yield a finding if the names of model and tokenizer are those of different vocabularies."""
    source = model.settings["source"].value
    ours = _vocabularies(str(getattr(source, "args", {}).get("id"))) or _vocabularies(arch)
    theirs = _vocabularies(tokenizer)
    if _known(tokenizer) or not ours or not theirs or ours & theirs:
        return
    yield finding(
        f"model `{model.name}` is of {min(ours)}, but its tokenizer is of {min(theirs)}: the same "
        "token ids mean other words",
        place(model.settings["tokenizer"], model),
        help="leave `tokenizer` out: a model brings its own",
    )


def _known(name: str) -> bool:
    """True for a model of a family whose vocabulary is known exactly."""
    try:
        return by_hub_name(name) is not None
    except Unsupported:
        return False


def _vocabularies(name: str) -> set[str]:
    """Return the vocabularies that a name speaks of; a distilled model has the names of two."""
    small = re.sub(r"[-_. ]", "", name.casefold())
    return {word for word in NAMED if word in small}


def _difference(ours: Decl, theirs: Decl) -> str:
    """Return how the vocabularies differ; "" if they are equal or unknown."""
    tokenizers = [m.settings["tokenizer"].value for m in (ours, theirs)]
    if all(isinstance(t, Constructor) for t in tokenizers):
        names = [str(next(iter(t.args.values()))) for t in tokenizers]
        return "" if names[0] == names[1] else f"{names[1]}, not {names[0]}"
    archs = [arch_of(model) for model in (ours, theirs)]
    if not all(isinstance(a, Constructor) for a in archs):
        return ""
    if family(archs[0].name).tokenizer != family(archs[1].name).tokenizer:
        return f"{archs[1].name}, not {archs[0].name}"
    sizes = [a.args.get("vocab") for a in archs]
    if all(isinstance(s, int) for s in sizes) and sizes[0] != sizes[1]:
        return f"{sizes[1]} entries, not {sizes[0]}"
    return ""
