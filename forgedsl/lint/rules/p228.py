"""P228 evals-over-training: evaluations sample over twice as many completions as training does.

    eval held_out { dataset = gsm8k, split = "test", every = 1 }     # fires: 1,319; training: 128
    eval held_out { dataset = gsm8k, split = "test", every = 50 }    # silent

The sampler is then busy with evaluations for most of its time (dolly #31, careless #77).
Evaluate less often, or a part: `limit = 200`. The rule counts rows of local .jsonl files and of
reasoning-gym, and knows the sizes of some published test sets.
"""

from os.path import normpath

from forgedsl.ir.program import Constructor, Decl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.plan.sizes import completions
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.shipped import locate
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
KNOWN = {
    ("openai/gsm8k", "test"): 1319, ("HuggingFaceH4/MATH-500", "test"): 500,
    ("openai/openai_humaneval", "test"): 164, ("HuggingFaceH4/aime_2024", "train"): 30,
}  # fmt: skip
"""rows of test sets, by hub name and split"""
MOST = 2
"""completions of evaluations for each one of training"""
FEW = 16
"""completions a step from which on training is more than a trial"""


def check(view: View) -> Findings:
    if view.planned is None or not view.program.evals:
        return
    graph, _ = view.planned
    trained = sum(completions(graph, node) for node in graph.having(Role.SAMPLES))
    sampled: list[tuple[float, Decl]] = []
    for decl in view.program.evals.values() if trained else ():
        rows = _rows(view, decl) if decl.settings["score"].value is not None else None
        if rows is not None:
            per_eval = rows * decl.settings["sample.n"].value
            sampled.append((per_eval / decl.settings["every"].value, decl))
    total = sum(count for count, _ in sampled)
    if total > MOST * trained and trained >= FEW:
        count, decl = max(sampled, key=lambda each: each[0])
        every = decl.settings["every"]
        yield finding(
            f"per step, evaluations sample {total:,.0f} completions and training {trained:,}; "
            f"`{decl.name}`, every {every.value} steps, samples most of them",
            place(every, decl),
            help=_help(view, decl, count, trained),
        )


def _help(view: View, decl: Decl, count: float, trained: int) -> str:
    """Return the setting with which evaluations cost a tenth of training, or as much as it in a run
    too short for that. `count` completions of `decl` and `trained` of training are sampled per
    step."""
    every, n = decl.settings["every"].value, decl.settings["sample.n"].value
    seldom = round(10 * every * count / trained)
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else None
    if not isinstance(steps, int) or seldom <= steps:
        return f"`every = {seldom}`, or `limit = 200`"
    if every >= steps or every * count > trained * steps:
        return f"`limit = {max(1, trained * every // n)}`"
    return f"`every = {steps}`, at the end of the run"


def _rows(view: View, decl: Decl) -> int | None:
    """Return the rows of an evaluation; None if unknown."""
    limit = decl.settings["limit"].value
    dataset = view.program.datasets.get(getattr(decl.settings["dataset"].value, "name", ""))
    if dataset is None:
        return None
    own = dataset.settings["source"].value
    source = decl.settings["source"].value or own
    if _place(source) == _place(own) and decl.settings["split"].value is None:
        return None  # it evaluates on rows of training, which D604 reports
    rows = _of_source(view, source, decl.settings["split"].value)
    known = [number for number in (limit, rows) if isinstance(number, int)]
    return min(known, default=None)


def _place(source: object) -> str:
    args = source.args if isinstance(source, Constructor) else {}
    return normpath("/".join(str(value) for value in args.values()))


def _of_source(view: View, source: object, split: str | None) -> int | None:
    if not isinstance(source, Constructor):
        return None
    if source.name == "hf":
        return KNOWN.get((str(source.args["id"]), split or str(source.args.get("split"))))
    if source.name == REASONING_GYM.name:
        return int(source.args["size"])
    if source.name != "jsonl" or view.folder is None or not view.shared.on_disk:
        return None
    key = ("rows", str(source.args["path"]))
    if key not in view.shared.answers:
        try:
            data = locate(str(source.args["path"]), view.folder).read_bytes()
            view.shared.answers[key] = data.count(b"\n")
        except OSError:
            view.shared.answers[key] = None  # P210 reports it
    found: int | None = view.shared.answers[key]
    return found
