"""X827 policy-code-run: Python of the policy runs in the process of an environment or a reward.

    @tool
    def calculate(self, expression: str) -> str:
        return str(eval(expression))                     # fires
        return str(value(ast.parse(expression, mode="eval").body))       # silent

`eval` and `exec` give the policy everything that the process has: the answer that the environment
keeps, its rewards, files, and the network (mcp-use #1718). If a reward does so, the policy can set
every later score (verl #7603), even if the reward declares `effects = [exec]`. An empty
`__builtins__` does not prevent this. Parse the text, and compute only what you know; or run it in a
sandbox (`forgedsl_runtime.sandbox`). The rule follows the text into helper functions. `pickle`, the
unsafe loaders of `yaml`, and `sympy.sympify`, which calls `eval`, run code as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from forgedsl.lint.follow.run import Flow
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")
RUNS = (
    "eval", "exec", "builtins.eval", "builtins.exec", "pandas.eval", "numexpr.evaluate",
    "pickle.loads", "pickle.load", "dill.loads", "cloudpickle.loads", "marshal.loads",
    "jsonpickle.decode", "yaml.unsafe_load", "code.interact", "runpy.run_path", "os.system",
    "sympy.sympify", "sympy.S", "sympy.parse_expr", "sympy.parsing.sympy_parser.parse_expr",
    "joblib.load", "torch.load", "shelve.open", "timeit.timeit", "importlib.import_module",
)  # fmt: skip
UNSAFE = ("Loader", "UnsafeLoader", "CLoader")
"""loaders of yaml that make any object"""
HELP = "parse it with `ast.parse` and compute what you know, or run it in a sandbox"


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import environment_flows, label, reward_flow

    for env in python_environments(view):
        for method in environment_flows(view, env):
            event = _run(method.flow)
            if event is not None:
                yield finding(
                    f"`{method.name}` of `{env.env.name}` runs text of the policy by "
                    f"`{event.name}`, in its own process",
                    env.env.name_span,
                    related=(label(view, "here", event.file, event.node),),
                    help=HELP,
                )
                break
    for found in python_rewards(view):
        flow = reward_flow(view, found)
        event = _run(flow) if flow is not None else None
        if event is not None:
            yield finding(
                f"reward `{found.reward.name}` runs text of the policy by `{event.name}`, in its "
                "own process",
                place_of(found.reward, view),
                related=(label(view, "here", event.file, event.node),),
                help=HELP,
            )


def _run(flow: Flow) -> Event | None:
    """Return a call that runs what the policy wrote."""
    from forgedsl.lint.follow.values import READS_RESPONSE

    for event in flow.events:
        if event.kind != "call" or not event.values or READS_RESPONSE not in event.values[0].all:
            continue
        loader = event.argument("Loader", 1) if event.name == "yaml.load" else None
        if event.name in RUNS or (
            loader is not None and loader.name.rpartition(".")[2] in UNSAFE
        ):  # fmt: skip
            return event
    return None
