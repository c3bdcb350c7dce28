"""D604 eval-overlap: an evaluation on the rows the policy is trained on.

    eval held_out { dataset = gsm8k, score = correct, every = 50 }     # fires: same rows

Give it another `split` or another `source`.
"""

from forgedsl.diagnostics import Label
from forgedsl.hir.ir import Constructor, Decl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "E")


def check(view: View) -> Findings:
    program = view.program
    trained = {step.receiver for step in program.flow if step.op in {"draw", "batches", "pairs"}}
    for evaluation in program.evals.values():
        dataset = program.datasets[evaluation.settings["dataset"].value.name]
        if dataset.name in trained and _same_rows(evaluation, dataset):
            yield finding(
                f"`{evaluation.name}` evaluates on the rows `{dataset.name}` trains on",
                evaluation.name_span,
                related=(Label(text="trained on", span=dataset.name_span),),
                help='`split = "test"`, or a `source` of its own',
            )


def _same_rows(evaluation: Decl, dataset: Decl) -> bool:
    source = evaluation.settings["source"].value
    trained: Constructor = dataset.settings["source"].value
    if isinstance(source, Constructor):
        return (source.name, dict(source.args)) == (trained.name, dict(trained.args))
    split = evaluation.settings["split"].value
    return split is None or split == trained.args.get("split")
