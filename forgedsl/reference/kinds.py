"""docs/reference/kinds.md: what can be declared and how it is written.

Names and settings come from forgedsl/schema; the shapes and the kinds without settings are stated
here, and a test holds them against the schema.
"""

from forgedsl.operations.registry import METHODS, declarations, forms, operations
from forgedsl.operations.statements import Form
from forgedsl.reference.markdown import GENERATED, block, code, join, table
from forgedsl.reference.settings import settings_table
from forgedsl.schema.constructors import JUDGE
from forgedsl.schema.kinds import ALL_KINDS, KINDS, SERVICES

INTRODUCTION = """\
A file holds declarations. Each begins with a word: `forge`, `import`, `param`, `require`, or one of
the kinds below; their order does not matter. `##` comments above a declaration are its
documentation, which `forgec doc` prints."""

WORDS = {
    "forge": (
        "forge 1",
        "the edition of the language. Optional; if given, it is the first declaration",
    ),
    "import": (
        'import "std/rl" as rl\nimport "shared/losses" as mine(eps = 0.1)\n'
        'import python "rewards/grading.py" as grading',
        "makes the declarations of another .forge file available as `mine.NAME`, with its "
        "parameters set by name. Its flow, evals and run settings are not imported. `import "
        "python` makes the functions of a Python file available; the compiler reads their "
        "signatures and does not execute the file",
    ),
    "param": (
        "param group : int = 8",
        "declares a value that can be overridden, such as with `--set group=4`. Types: `str "
        "int float bool duration bytes list`",
    ),
    "require": (
        'require group >= 2 else "a group needs two completions"',
        "a condition that is checked at compile time, after all overrides; if it is false, the "
        "text after `else` is the error",
    ),
}
SHAPES = {
    "run": "run { seed = 3 }",
    "cluster": "cluster { hosts = 2, gpus = 8 }",
    "launcher": 'launcher = slurm(partition = "gpu")',
    "colocate": "colocate = [trainer, generator]",
    "model": 'model policy { source = hf("Qwen/Qwen3-1.7B") }',
    "dataset": 'dataset sums { source = jsonl("sums.jsonl"), prompt = row.question }',
    "reward": "reward correct = rl.math_equal(tolerance = 1e-6)\n"
    "reward short(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / 64, 0.0, 1.0)\n"
    "reward tests = grading.run_tests { procs = 4, timeout = 20s, effects = [exec] }\n"
    'reward style = judge.score(prompt = "{prompt} {response} Grade, 1 to 5:", scale = [1, 5])',
    "rubric": "rubric grade { score = 0.9 * correct + 0.1 * short, on_truncated = 0.0 }",
    "environment": "environment shop = desk.Desk(rows = 40) { procs = 2, tool_timeout = 5s }",
    **{kind: each.shown for kind, each in declarations().items()},
    "schedule": "schedule sync { steps = 100 }\nschedule async { steps = 100, max_policy_age = 1 }",
    "eval": "eval held_out { dataset = sums, score = correct, every = 50 }",
    "checkpoint": "checkpoint { every = 100, keep = 3 }",
    "logging": 'logging { wandb { project = "sums" } }',
    "proofs": 'proofs { off { frozen = "the folder is on a slow disk" } }',
    "service": "service trainer   : titan(policy) { optimizer { lr = 1e-6 } }\n"
    "service generator : vllm(policy)  { sampling { max_tokens = 512 } }\n"
    'service remote    : openai("m")   { url = "https://example.org/v1", key = "JUDGE_KEY" }',
    "flow": "flow train {\n  prompt  = sums.draw(16)\n"
    "  rollout = generator.sample(prompt, n = 8)\n"
    "  score   = grade(rollout, prompt.target)\n"
    "  batch   = replay(rollout, adv = rl.group_norm(score))\n"
    "  trainer.step(batch, loss = rl.dapo)\n  sync trainer -> generator\n}",
    "profile": "profile cpu when cluster.gpus == 0 { trainer { procs = 1 }, schedule.steps = 20 }",
    "loss": "loss nll(logprob: diff [B, T] f32, mask: [B, T] bool) {\n"
    "  minimize token_mean(-logprob, mask)\n}",
    "advantage": "advantage centred(r: [G] f32) -> [G] f32 = r - mean(r, G)",
    "filter": "filter mixed(score: [G] f32) -> bool = std(score, G) > 0.0",
    "fn": "fn k1(lp: [B, T] f32, ref: [B, T] f32) -> [B, T] f32 = lp - ref",
}
MEANINGS = {
    "service": "processes that hold a model. A `titan` service that has a `step` in the flow "
    "trains its model, any other keeps it frozen; `titan(value_head(policy))` adds a value head, "
    "which returns one number per token. `vllm` samples from it or judges. `openai` is a remote "
    "model that judges",
    "flow": "how samples become training steps: a dataflow graph. Every name is bound once. Only "
    "`sync`, `observe` and buffers lead back to an earlier node",
    "profile": "settings for one environment, such as a laptop or a cluster. `--profile NAME` "
    "selects it. Without `--profile`, the first profile whose `when` is true is used, and the "
    "output names it",
    "loss": "the objective to minimize, as mathematics over named axes; the compiler derives its "
    "gradient",
    "advantage": "computes advantages from scores: over `[G]` among the completions of one prompt, "
    "over `[B]` among all sequences of the step, over `[B, T]` for each token",
    "filter": "decides if a group of completions is kept: `kept = rollout.keep(mixed(score))`. "
    "Another group is drawn for each dropped one",
    "fn": "a named function for losses and advantages, or for the weight of a draw",
}


def _statements() -> dict[str, str]:
    """Return the meaning of each statement by its word; a word of two kinds has both meanings."""
    found: dict[str, str] = {}
    for unit in operations():
        for form in unit.forms:
            word = form.method or unit.name
            if form.doc:
                also = f"{found[word]}; of a {form.owner}: " if word in found else ""
                found[word] = also + form.doc
    return found


STATEMENTS = _statements()


def page() -> str:
    """The whole reference."""
    parts = ["# Kinds", GENERATED, INTRODUCTION, "## Words of the language"]
    parts += [_entry(word, *entry) for word, entry in WORDS.items()]
    parts.append("## Declarations")
    parts += [_entry(kind, SHAPES[kind], meaning(kind)) for kind in ALL_KINDS]
    return join([*parts, *_flow()])


def entry(kind: str) -> str:
    """One kind with its settings."""
    schemas = SERVICES if kind == "service" else {kind: KINDS[kind]} if kind in KINDS else {}
    parts = [f"# {kind}", f"{meaning(kind)[:1].upper()}{meaning(kind)[1:]}.", block(SHAPES[kind])]
    for name, schema in schemas.items():
        parts += [f"## {name}" if len(schemas) > 1 else "", settings_table(schema)]
    return join(parts)


def meaning(kind: str) -> str:
    """Return the purpose of a kind, as a sentence without its full stop."""
    return MEANINGS[kind] if kind in MEANINGS else KINDS[kind].doc


def _entry(name: str, shape: str, text: str) -> str:
    sentence = f"{text[:1].upper()}{text[1:]}."
    link = ""
    if name == "service":
        sections = ", ".join(f"[{s}](settings.md#service--{s}model)" for s in SERVICES)
        link = f"Settings: {sections}."
    elif name in KINDS:
        labels = "--".join(KINDS[name].labels)
        link = f"[Settings](settings.md#{name}{'-' + labels if labels else ''})."
    return join([f"### {name}", f"{sentence} {link}".strip(), block(shape)])


def _flow() -> list[str]:
    rows = [_row(owner, form) for owner in METHODS for _, form in forms(owner)]
    rows += [_row("", form) for owner in ("rubric", "stream") for _, form in forms(owner)]
    meaning = f"{JUDGE.doc[:1].upper()}{JUDGE.doc[1:]}"
    text = f"stands in a reward declaration, not in a flow. {meaning}"
    rows.append((code("SERVICE.score(prompt, scale = [1, 5], range = [0.0, 1.0])"), text))
    rows += [_row("", form) for _, form in forms("")]
    return ["## Statements of a flow", table(("statement", "meaning"), rows)]


def _row(owner: str, form: Form) -> tuple[str, str]:
    """Return the form of a statement and its meaning."""
    shown = form.shown or f"{owner}.{form.method}({', '.join(form.params)})"
    needs = " and ".join(f"`{column}`" for column in form.columns)
    return code(shown), form.doc + (f". The dataset must have {needs}" if needs else "")
