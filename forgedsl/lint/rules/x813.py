"""X813 failure-scored: a failure outside of the answer is scored like a wrong answer.

    except requests.RequestException:
        return 0.0                                   # fires: the server was down
    except Exception:
        return Step(rewards={"solved": 0.0})         # fires: this also hides bugs in the class
    except ValueError:
        return 0.0                                   # silent: the answer is no number
    except requests.RequestException:
        raise                                        # silent
    return reply.json()["score"] if reply.ok else 0.0            # fires
    return float(reply.json().get("score", 1.0))                 # fires: no score is a full one

A score of 0 for a good answer teaches the policy to avoid it, and a service that is down for a step
looks like a policy that forgot everything. Raise instead: the call is repeated once, and then
`on_error` of the rubric decides. The rule fires for rewards that score a failed request, and for
environments and agents that score any exception. Failed requests were scored 0 in verl-omni #366
and NeMo-RL #2479.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import (
    PythonClass,
    python_environments,
    rewards_of,
    scored_in,
    scores_by_return,
)
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

finding = rule(__doc__, "W")
BROAD = ("Exception", "BaseException")
OUTAGES = (
    "RequestException", "ConnectionError", "Timeout", "TimeoutError", "HTTPError", "URLError",
    "OSError", "ConnectError", "TransportError", "APIError", "APIConnectionError", "ClientError",
    "RateLimitError", "APITimeoutError", "ReadTimeout", "ConnectTimeout", "TimeoutException",
)  # fmt: skip
"""exceptions of requests, httpx, aiohttp, urllib and openai"""
STATUS = ("status_code", "ok", "is_error", "is_success", "status", "is_server_error")
"""attributes of a reply that say if the request failed"""
SCORES = r"score|reward|passed|correct|ok$|verdict|result|grade|accuracy"
"""keys of a reply that hold a score"""
HELP = "raise: the call is made again, and then `on_error` of the rubric decides"


def check(view: View) -> Findings:
    import ast as python

    for found in python_rewards(view):
        node = found.once(_outage)
        here = Label(text="here", span=found.at(node)) if node is not None else _later(view, found)
        if here is not None:
            yield finding(
                f"reward `{found.reward.name}` scores a failed request as a wrong answer",
                place_of(found.reward, view),
                related=(here,),
                help=HELP,
            )
        bare = _bare_reply(view, found)
        if bare is not None:
            yield finding(
                f"reward `{found.reward.name}` gives points for a reply that has no score",
                place_of(found.reward, view),
                related=(bare,),
                help='read it as `reply["score"]`: without one, the call is made again',
            )
    for env in python_environments(view):
        steps = (
            place
            for method in env.methods.values()
            for handler in (*_handlers(method, BROAD), *_kept(method))
            for place, numbers in scored_in(handler)
            if isinstance(place, python.Call) or scores_by_return(env, method)
            if not any(number > 0 for number in numbers)  # X811 reports positive ones
        )
        step = next(steps, None) or _suppressed(env)
        here = Label(text="here", span=env.at(step)) if step is not None else _any(view, env)
        if here is not None:
            yield finding(
                f"{env.what} `{env.env.name}` scores every exception, also those that a bug in it "
                f"raises",
                env.env.name_span,
                related=(here,),
                help="catch only what a wrong answer raises, `except ValueError`; raise the rest, "
                "and `on_error` of the rubric decides",
            )


def _bare_reply(view: View, found: PythonReward) -> Label | None:
    """Return a `get` with a default above 0 on the reply of a request."""
    from forgedsl.lint.follow.programs import label, reward_flow
    from forgedsl.lint.follow.values import NET

    flow = reward_flow(view, found)
    for event in flow.events if flow is not None else ():
        if event.kind == "call" and event.name.rpartition(".")[2] == "get":
            default = event.values[1].const if len(event.values) == 2 else None
            is_number = isinstance(default, int | float) and not isinstance(default, bool)
            scored = event.values and re.search(SCORES, str(event.values[0].const)) is not None
            if NET in event.receiver.labels and scored and is_number and default > 0:  # type: ignore[operator]
                return label(view, "here", event.file, event.node)
    return None


def _later(view: View, found: PythonReward) -> Label | None:
    """Return an `except` clause of an outage after which the score is 0 or less."""
    import ast as python

    from forgedsl.lint.follow.programs import failing_rewards, label

    for handler, node, run in failing_rewards(view, found):
        scores = [each.value.const for each in run.returned if each.taken]
        is_zero = bool(scores) and all(isinstance(s, int | float) and s <= 0 for s in scores)
        one = python.Try(body=node.body, handlers=[handler], orelse=[], finalbody=[])
        if is_zero and _handlers(one, (*BROAD, *OUTAGES)) and _asks(found, node.body):
            return label(view, "here", run.file, handler)
    return None


def _any(view: View, env: PythonClass) -> Label | None:
    """Return an `except` clause of any exception after which a score is a constant, if this score
    is computed on the paths without the exception."""
    import ast as python

    from forgedsl.lint.follow.programs import environment_flows, failing_environments, label
    from forgedsl.lint.follow.values import UNKNOWN

    computed = {
        id(event.node)
        for method in environment_flows(view, env)
        for event in method.flow.events
        if UNKNOWN in rewards_of(event)
    }
    for handler, node, methods in failing_environments(view, env):
        one = python.Try(body=node.body, handlers=[handler], orelse=[], finalbody=[])
        for method in methods if _handlers(one, BROAD) else ():
            for event in method.flow.events:
                scores = rewards_of(event) if event.taken else []
                if scores and UNKNOWN not in scores and id(event.node) in computed:
                    return label(view, "here", method.flow.file, handler)
    return None


def _kept(method: python.AST) -> list[python.If]:
    """Return the tests for any exception that `gather(..., return_exceptions=True)` has kept."""
    import ast as python

    return [
        node
        for node in python.walk(method)
        if isinstance(node, python.If)
        and isinstance(node.test, python.Call)
        and getattr(node.test.func, "id", "") == "isinstance"
        and len(node.test.args) == 2
        and getattr(node.test.args[1], "id", "") in BROAD
    ]


def _suppressed(env: PythonClass) -> python.AST | None:
    """Return a `with suppress(Exception)` in what a run calls for its scores."""
    import ast as python

    for name in ("reset", "step", "run"):
        for node in python.walk(env.methods[name]) if name in env.methods else ():
            for item in node.items if isinstance(node, python.With | python.AsyncWith) else ():
                call = item.context_expr
                called = getattr(call, "func", None)
                is_suppress = getattr(called, "attr", getattr(called, "id", "")) == "suppress"
                given = call.args if isinstance(call, python.Call) and is_suppress else []
                if any(getattr(each, "id", "") in BROAD for each in given):
                    return call
    return None


def _handlers(node: python.AST, kinds: tuple[str, ...]) -> list[python.ExceptHandler]:
    """Return the handlers of these exceptions, or of all exceptions."""
    import ast as python

    found = []
    for each in python.walk(node):
        if isinstance(each, python.ExceptHandler):
            caught = each.type.elts if isinstance(each.type, python.Tuple) else [each.type]
            names = [getattr(c, "attr", getattr(c, "id", "")) for c in caught if c is not None]
            if each.type is None or {*names} & {*kinds}:
                found.append(each)
    return found


def _outage(found: PythonReward) -> python.AST | None:
    """Return the statement that scores a failed request with 0 or less."""
    import ast as python

    from forgedsl.types.effects import nodes_of

    asks = any(use.effect == "net" for use in found.uses)
    for each in nodes_of(found.definition) if asks else ():
        node = _refused(each)
        if node is not None:
            return node
    for each in nodes_of(found.definition):
        if not isinstance(each, python.Try) or not _asks(found, each.body):
            continue
        for handler in _handlers(each, (*BROAD, *OUTAGES)):
            for node in python.walk(handler):
                if _is_zero(node.value if isinstance(node, python.Return) else None):
                    return node
    return None


def _refused(node: python.AST) -> python.AST | None:
    """Return the 0 of `return 0.0` or `... if reply.ok else 0.0` that the status of a reply
    decides."""
    import ast as python

    if not isinstance(node, python.If | python.IfExp):
        return None
    tested = {each.attr for each in python.walk(node.test) if isinstance(each, python.Attribute)}
    if not tested & {*STATUS}:
        return None
    if isinstance(node, python.IfExp):
        return next((each for each in (node.body, node.orelse) if _is_zero(each)), None)
    last = (*node.body[-1:], *node.orelse[-1:])
    return next((n for n in last if isinstance(n, python.Return) and _is_zero(n.value)), None)


def _is_zero(value: python.expr | None) -> bool:
    """True for a constant number of 0 or less."""
    import ast as python

    is_negative = isinstance(value, python.UnaryOp)
    paid = value.operand if isinstance(value, python.UnaryOp) else value
    number = getattr(paid, "value", None)
    return isinstance(number, int | float) and (is_negative or number <= 0)


def _asks(found: PythonReward, body: list[python.stmt]) -> bool:
    """True if statements make a request, directly or through a function of the file."""
    import ast as python

    from forgedsl.types.effects import uses

    first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
    if any(use.effect == "net" and first <= use.line <= last for use in found.uses):
        return True
    tops = {node.name for node in found.module.body if isinstance(node, python.FunctionDef)}
    called = {
        node.func.id
        for statement in body
        for node in python.walk(statement)
        if isinstance(node, python.Call) and isinstance(node.func, python.Name)
    }
    return any(use.effect == "net" for name in called & tops for use in uses(found.module, name))
