"""X815 chance-without-rng: an environment uses `random` instead of the `rng` it is given.

    def reset(self, task, rng): self.price = random.randrange(9)     # fires
    def reset(self, task, rng): self.price = rng.randrange(9)        # silent
    def reset(self, task, rng): self.rng = rng                       # silent: for `step`
    rng = numpy.random.default_rng(rng.getrandbits(32))              # silent: seeded by it

`rng` has the same seed for all trajectories of a prompt. With other randomness, each of them plays
another game: an easy game looks like a good answer, and the advantage within a group is noise. Such
a run cannot be repeated either: in strands-labs robots #518 the same scene and policy gave a
different trajectory each time. Draw from `rng`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

finding = rule(__doc__, "W")
SEEDED = (
    "random.Random", "numpy.random.default_rng", "numpy.random.RandomState",
    "numpy.random.Generator", "numpy.random.SeedSequence", "numpy.random.PCG64",
)  # fmt: skip
SEEDS = ("random.seed", "numpy.random.seed")
"""calls that set a seed, which X814 reports"""


def check(view: View) -> Findings:
    for env in python_environments(view):
        node, name = _drawn(env)
        if node is not None:
            yield finding(
                f"{env.what} `{env.env.name}` draws from `{name}`, not from its `rng`",
                env.env.name_span,
                related=(Label(text="differs within a group", span=env.at(node)),),
                help="draw from `self.rng`, whose seed is the same for all of a group"
                if env.env.body.agent
                else "`self.rng = rng` in `reset`, and draw from it: its seed is the same for all "
                "of a group",
            )


def _drawn(env: PythonClass) -> tuple[python.AST | None, str]:
    """Return the first call that draws from the process's random state, and its name."""
    import ast as python

    for method in env.methods.values():
        full = env.names(method)
        given = {argument.arg for argument in method.args.args}
        for node in python.walk(method):
            if not isinstance(node, python.Call):
                continue
            name, head = full(node.func), full(node.func).partition(".")[0]
            is_chance = name.startswith(("random.", "numpy.random.")) and head not in given
            seeded = name in SEEDED and bool(node.args or node.keywords)
            if is_chance and not seeded and name not in SEEDS:
                return node, name
    return None, ""
