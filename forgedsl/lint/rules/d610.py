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
        try:
            known = by_hub_name(str(tokenizer.args["id"]))
        except Unsupported:
            continue
        if known is not None and known[0].tokenizer != family(arch.name).tokenizer:
            yield finding(
                f"model `{model.name}` is of family {arch.name}, and its tokenizer of "
                f"{known[0].name}: its token ids are other words",
                place(model.settings["tokenizer"], model),
                help="leave `tokenizer` out: a model brings its own",
            )


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
