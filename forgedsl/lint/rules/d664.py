"""D664 made-rows: rows of reasoning-gym lack a column, or its score is used for other rows.

    source = reasoning_gym("leg_counting", seed = 1)
    prompt = row.qestion                              # fires: question, answer, metadata, entry
    prompt = row.question                             # silent

    source = jsonl("sums.jsonl")
    reward right = rl.reasoning_gym                   # fires: no row says which problem it is

Each row would be left out, and the run would end before its first step. Read a column that the rows
have, and score other rows with another reward, such as `rl.math_equal`. What `metadata` holds
depends on the task: `forgec lint --deep` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ir.program import Constructor, rewards_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.sources import is_made, needed_columns, parts
from forgedsl.lint.view import View
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.types.flow import Role

finding = rule(__doc__, "E")
COLUMNS = ("question", "answer", "metadata", "entry")


def check(view: View) -> Findings:
    yield from _columns(view)
    reported = set()
    for score, what, source in _scored(view):
        others = [part for part in parts(source) if not is_made(part)]
        for name in rewards_of(view.program, score) if others else ():
            reward = view.program.rewards.get(name)
            body = None if reward is None else reward.body
            if not isinstance(body, Constructor) or body.name != REASONING_GYM.name:
                continue
            if reward is not None and name not in reported:
                reported.add(name)
                yield finding(
                    f"`{name}` scores problems of reasoning-gym, but rows of {what} come from "
                    f"`{others[0].name}`",
                    place_of(reward, view),
                    help='`source = reasoning_gym("TASK", ...)`, or another reward',
                )


def _columns(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        made = [*parts(dataset.settings["source"].value)]
        if not made or not all(map(is_made, made)):
            continue
        for column, span in needed_columns(dataset):
            if column not in COLUMNS:
                listed = ", ".join(f"`row.{name}`" for name in COLUMNS)
                yield finding(
                    f"rows of reasoning-gym have no column `{column}`",
                    span,
                    help=did_you_mean(nearest(column, COLUMNS)) or f"they have {listed}",
                )


def _scored(view: View) -> Iterator[tuple[str, str, object]]:
    """Yield (score, what it scores in words, source of the rows) of the flow and of evals."""
    datasets = view.program.datasets
    graph = view.planned[0] if view.planned is not None else None
    for node in graph.having(Role.SCORES) if graph is not None else ():
        dataset = datasets.get(graph.node(node.root).target) if graph is not None else None
        if dataset is not None:
            yield node.target, f"`{dataset.name}`", dataset.settings["source"].value
    for name, decl in view.program.evals.items():
        score, own = (decl.settings[key].value for key in ("score", "source"))
        dataset = datasets.get(getattr(decl.settings["dataset"].value, "name", ""))
        if score is not None and dataset is not None:
            yield score.name, f"`{name}`", own or dataset.settings["source"].value
