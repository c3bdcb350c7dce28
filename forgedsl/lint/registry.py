"""All rules that check a resolved program: the modules of `rules`, in the order they run in.

A rule is a module with a docstring (its page for users, which begins with code and name), a
`finding` that makes its diagnostics, and `check(view)`, which yields them. The file has the name of
the code, and is imported when the rule is needed. Most programs need no rules of Python code.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from forgedsl.hir.judges import NAME as JUDGE
from forgedsl.hir.judges import SCORER
from forgedsl.ir.program import Constructor, Program, PythonFunction
from forgedsl.lint import rules
from forgedsl.lint.sources import all_sources, is_made
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.diagnostics import Diagnostic
    from forgedsl.lint.finding import Finding
    from forgedsl.lint.view import View

FAMILIES = "falrdptxn"
"""families of rules, in the order in which they run"""


class Rule(Protocol):
    """Interface of a rule's module."""

    finding: Finding

    def check(self, view: View) -> Iterable[Diagnostic]: ...


def _has_python(program: Program) -> bool:
    """True if a reward or an environment is in Python."""
    rewards = program.rewards.values()
    return bool(program.environments) or any(isinstance(r.body, PythonFunction) for r in rewards)


def _has_environments(program: Program) -> bool:
    return bool(program.environments)


def _has_judges(program: Program) -> bool:
    """True if a model gives a reward."""
    bodies = [reward.body for reward in program.rewards.values()]
    return any(isinstance(b, Constructor) and b.name in (JUDGE, SCORER) for b in bodies)


def _has_effects(program: Program) -> bool:
    """True if a reward declares effects, or may have some."""
    declared = any(reward.settings["effects"].value for reward in program.rewards.values())
    return declared or _has_python(program) or _has_judges(program)


def _has_filters(program: Program) -> bool:
    """True if the program has a filter, or its flow drops groups."""
    drops = any(Role.DROPS in step.roles for step in program.flow)
    return drops or any(each.kind == "filter" for each in program.functions.values())


def _has_made_rows(program: Program) -> bool:
    """True if reasoning-gym makes rows, or scores answers."""
    bodies = [reward.body for reward in program.rewards.values()]
    scores = any(isinstance(b, Constructor) and b.name == REASONING_GYM.name for b in bodies)
    return scores or any(map(is_made, all_sources(program)))


def _has_packages(program: Program) -> bool:
    """True if the program needs a package that is not installed with the compiler."""
    played = [env.body for env in program.environments.values()]
    return any(e.is_gymnasium or e.is_program for e in played) or _has_made_rows(program)


def _has_python_losses(program: Program) -> bool:
    return any(function.python is not None for function in program.functions.values())


def _has_weighted_draws(program: Program) -> bool:
    return any("weight" in step.settings for step in program.flow)


def _has_pairs(program: Program) -> bool:
    """True if a dataset has chosen and rejected answers."""
    return any(dataset.settings["chosen"].value for dataset in program.datasets.values())


def _has_critics(program: Program) -> bool:
    """True if a statement asks a critic for values."""
    return any(Role.MEASURES in step.roles and not step.is_logprobs for step in program.flow)


def _updates_again(program: Program) -> bool:
    """True if a step may make several updates on the same samples."""
    steps = [step.settings for step in program.flow if Role.UPDATES in step.roles]
    return any(step[key].value > 1 for step in steps for key in ("epochs", "minibatches"))


def _names_hosts(program: Program) -> bool:
    """True if the launcher names hosts."""
    launcher = program.singletons["launcher"].settings["value"].value
    return isinstance(getattr(launcher, "args", {}).get("hosts"), list)


def _passes(*names: str) -> Callable[[Program], bool]:
    """Return a test: does a statement pass an argument of one of these names?"""
    return lambda program: any(i.argument in names for step in program.flow for i in step.inputs)


def _scores_by(name: str) -> Callable[[Program], bool]:
    """Return a test: does this reward of the library score?"""
    return lambda program: any(
        isinstance(reward.body, Constructor) and reward.body.name == name
        for reward in program.rewards.values()
    )


def _sets(kind: str, name: str) -> Callable[[Program], bool]:
    """Return a test: does the program set this setting, or one below it (`engine.extra.`)? With the
    default, these rules find nothing."""

    def sets(program: Program) -> bool:
        groups = {"model": program.models, "dataset": program.datasets, "service": program.services}
        alone = program.schedule if kind == "schedule" else program.singletons.get(kind)
        decls = groups[kind].values() if kind in groups else () if alone is None else (alone,)
        if not name or name.endswith("."):
            values = (v for d in decls for n, v in d.settings.items() if n.startswith(name))
        else:
            values = (d.settings[name] for d in decls if name in d.settings)
        return any(value.origin.layer != "default" for value in values)

    return sets


SUBJECTS: tuple[tuple[Callable[[Program], bool], tuple[str, ...]], ...] = (
    (
        _has_python,
        (
            "D647", "D648", "D649", "D661", "R511", "R535", "X802", "X811", "X812", "X813", "X814",
            "X815", "X816", "X817", "X818", "X819", "X820", "X821", "X822", "X823", "X824", "X825",
            "D666", "X826", "X827", "X828", "X829", "X830", "X831",
            "X835", "X836", "X837", "X838", "X839", "X840", "X841", "X842", "X843", "X844", "X845",
            "X846", "X847", "X848", "X849",
            "R540", "X832", "X833", "X862", "X863", "X864", "X865", "X866", "X868",
            "X869", "X870", "X871", "X872", "X873",
        ),
    ),
    (_has_environments, ("R542",)),
    (_has_judges, ("R530", "R531", "R532", "R533", "R534", "R536", "R537", "R543")),
    (_has_effects, ("R505", "R506", "R507", "R510", "R538", "X803")),
    (_has_filters, ("A306", "R521", "R526")),
    (_has_python_losses, ("L434",)),
    (_has_weighted_draws, ("D646",)),
    (_has_pairs, ("D624", "D659", "D672")),
    (_has_made_rows, ("D664",)),
    (_has_packages, ("X834",)),
    (_has_critics, ("L438", "L439")),
    (_updates_again, ("L431", "L433")),
    (_names_hosts, ("P226",)),
    (_passes("proximal"), ("L435",)),
    (_scores_by("contains"), ("R529",)),
    (_sets("dataset", "chat"), ("D656", "D660")),
    (_sets("dataset", "max_bad_rows"), ("D662",)),
    (_sets("model", "chat_template"), ("D642", "D653", "D654")),
    (_sets("proofs", ""), ("A319",)),
    (_sets("schedule", "restarts"), ("A317",)),
    (_sets("service", "engine.extra."), ("P222",)),
    (_sets("service", "optimizer.warmup"), ("A311",)),
    (_sets("service", "sampling.stop"), ("D607", "D641")),
)  # fmt: skip
"""(test of a program, rules): the rules find nothing in a program that fails the test"""

CALLED = (
    "X850",
    "X851",
    "X852",
    "X853",
    "X854",
    "X855",
    "X856",
    "X857",
    "X858",
    "X859",
    "X860",
    "X861",
)
"""rules that check the results of the calls that --deep made to rewards and environments"""

CODES: tuple[str, ...] = tuple(
    sorted(
        (name[:-3].upper() for name in os.listdir(rules.__path__[0]) if name[0] in FAMILIES),
        key=lambda code: (FAMILIES.index(code[0].lower()), code),
    )
)


@cache
def rule_of(code: str) -> Rule:
    """Import the rule of a code."""
    return cast(Rule, importlib.import_module(f"{rules.__name__}.{code.lower()}"))


def finding_of(code: str) -> Finding | None:
    """Return the Finding of a code; None if no rule has this code."""
    return rule_of(code).finding if code in CODES else None


def rules_for(program: Program, runs: Callable[[str], bool]) -> Iterator[Rule]:
    """Yield the rules that may find something in a program, of those that run without --deep."""
    apart = {code for has, codes in SUBJECTS if not has(program) for code in codes} | {*CALLED}
    return (rule_of(code) for code in CODES if code not in apart and runs(code))
