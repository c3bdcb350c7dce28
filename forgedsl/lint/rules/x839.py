"""X839 unequal-verdicts: the same answer gets another score at another time.

    right * (1.0 - (time.monotonic() - self.began) / 60)      # fires: the clock
    chosen = random.sample(cases, 3)                          # fires: tests drawn for each answer
    self.mean = 0.98 * self.mean + 0.02 * value
    return value - self.mean                                  # fires: the reward keeps a baseline
    return value                                              # silent
    return max([vote(seed) for seed in range(3)])             # fires: the best of three replies
    CALLS["now"] += 1; return right + 0.5 / CALLS["now"]      # fires: later answers get less
    def new(words, seen=set()): ...; seen.add(word)           # fires: one set for all calls
    again = self.past.count(response); self.past.append(response)        # fires
    if text in SEEN: return 0.2                               # fires: it got 1.0 the first time
    SEEN.add(text)
    return 1.0

Answers of a group are compared with each other. If equal answers get different scores, the
advantage is luck: how busy the host was, which tests were drawn, what the process had scored before
(Gym #2078, PipelineRL #54). Score the answer alone; measure time in a reward with `monitor = true`,
run the same tests for all, and leave the baseline to the advantage.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.reached import Part
    from forgedsl.lint.follow.values import Event
    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")
ADDS = ("add", "append", "update", "extend", "insert", "appendleft")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import files_of, label
    from forgedsl.lint.follow.reached import found_in
    from forgedsl.lint.follow.scores import scorers
    from forgedsl.lint.follow.values import CLOCK, DRAWN

    for scorer in scorers(view):
        for score in scorer.scores:
            read = score.value.all
            if CLOCK in read or (DRAWN in read and scorer.is_reward):
                yield finding(
                    f"{scorer.what} scores by the clock: equal answers get different scores"
                    if CLOCK in read
                    else f"{scorer.what} compares each answer with another random part of the "
                    "target",
                    scorer.span,
                    related=(label(view, "here", score.file, score.node),),
                    help="count turns or tokens instead of seconds"
                    if CLOCK in read
                    else "take the same part for all answers, such as `cases[:3]`",
                )
                break
    raises = positive_rewards(view)
    yield from _best_of(view)
    for part, node in found_in(view, _seen):
        if part.name in raises:
            yield finding(
                f"{part.what} scores a text lower, or higher, if this process has scored it before",
                part.span,
                related=(label(view, "here", part.file, node),),
                help="score each response by its own text, whatever was scored before",
            )
    yield from _by_calls(view)
    yield from _by_default(view)
    yield from _remembered(view)
    for found in python_rewards(view):
        moving = found.once(_moving) if found.reward.name in raises else None
        file = files_of(view).read(found.function.module)
        if moving is not None and file is not None:
            name, node = moving
            yield finding(
                f"reward `{found.reward.name}` subtracts `self.{name}`, which each call changes",
                place_of(found.reward, view),
                related=(label(view, "here", file, node),),
                help="return the score alone; the advantage subtracts the baseline",
            )


def _by_calls(view: View) -> Findings:
    """Yield rewards that count their calls in the file."""
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.reached import found_in

    raises = positive_rewards(view)
    for part, node in found_in(view, _counted):
        if part.name in raises:
            yield finding(
                f"{part.what} computes the score from a global variable that each call changes",
                part.span,
                related=(label(view, "changed here", part.file, node),),
                help="score the response alone; for a schedule, use `num_steps` in a loss or an "
                "advantage",
            )


def _by_default(view: View) -> Findings:
    """Yield rewards that add to an object which is the default of a parameter."""
    from forgedsl.lint.follow.programs import label, reward_flow
    from forgedsl.lint.follow.values import OF_DEFAULT, READS_RESPONSE, all_of

    raises = positive_rewards(view)
    for found in python_rewards(view):
        flow = reward_flow(view, found) if found.reward.name in raises else None
        for event in flow.events if flow is not None else ():
            is_call = event.kind == "call" and event.name.rpartition(".")[2] in ADDS
            added = is_call and READS_RESPONSE in all_of(event.values)
            added = added or (event.kind == "change" and _counts_up(event))
            if added and OF_DEFAULT in event.receiver.labels:
                yield finding(
                    f"reward `{found.reward.name}` adds to the default of a parameter, which all "
                    "calls share: a response gets another score the next time",
                    place_of(found.reward, view),
                    related=(label(view, "here", event.file, event.node),),
                    help="make `None` the default, and a new object in the body",
                )
                break


def _counts_up(event: Event) -> bool:
    """True for `x[key] = x.get(key, 0) + 1` and `x[key] += 1`."""
    import ast as python

    if isinstance(event.node, python.AugAssign):
        return True
    if not isinstance(event.node, python.Subscript):
        return False
    store = python.unparse(event.node.value)
    made = (n for n in python.walk(event.file.module) if isinstance(n, python.Assign))
    given = next((n.value for n in made if event.node in n.targets), None)
    return given is not None and any(
        isinstance(n, python.Name | python.Attribute) and python.unparse(n) == store
        for n in python.walk(given)
    )


def _remembered(view: View) -> Findings:
    """Yield rewards that keep responses in an attribute, and score a response by those that are
    there."""
    from forgedsl.lint.follow.programs import label, reward_flow
    from forgedsl.lint.follow.values import READS_RESPONSE, all_of

    raises = positive_rewards(view)
    for found in python_rewards(view):
        flow = reward_flow(view, found) if found.reward.name in raises else None
        events = flow.events if flow is not None else []
        asked = {name for name in map(_asked, events) if name.startswith("self.")}
        added = (event for event in events if _adds_to(event) in asked)
        kept = next((e for e in added if READS_RESPONSE in all_of(e.values)), None)
        if kept is not None:
            yield finding(
                f"reward `{found.reward.name}` compares a response with earlier ones, which "
                f"`{_adds_to(kept)}` keeps",
                place_of(found.reward, view),
                related=(label(view, "kept here", kept.file, kept.node),),
                help="score each response by its own text, whatever was scored before",
            )


def _adds_to(event: Event) -> str:
    """Return the object to which a call adds something: `seen` of `seen.add(x)`."""
    import ast as python

    match event.node:
        case python.Call(func=python.Attribute(value=owner, attr=name)) if name in ADDS:
            return python.unparse(owner) if event.kind == "call" else ""
    return ""


def _asked(event: Event) -> str:
    """Return the object in which an event looks for something: `x in seen`, `seen.count(x)`."""
    import ast as python

    match event.node:
        case python.Compare(ops=[python.In() | python.NotIn()], comparators=[where]):
            return python.unparse(where)
        case python.Call(func=python.Attribute(value=where, attr="count" | "index")):
            return python.unparse(where)
    return ""


def _best_of(view: View) -> Findings:
    """Yield rewards that take the best of several replies to one question."""
    import ast as python

    from forgedsl.lint.follow.programs import label, reward_flow
    from forgedsl.lint.follow.values import NET
    from forgedsl.lint.python_bodies import body_of

    raises = positive_rewards(view)
    for found in python_rewards(view):
        flow = reward_flow(view, found) if found.reward.name in raises else None
        for event in flow.events if flow is not None else ():
            is_best = event.kind == "call" and event.name in ("max", "any") and event.values
            if not is_best or NET not in event.values[0].all or len(event.values) > 1:
                continue
            inner = body_of(found).nodes(event.node.args[0])  # type: ignore[attr-defined]
            again = (n for n in inner if isinstance(n, python.comprehension))
            if any(python.unparse(each.iter).startswith("range(") for each in again):
                yield finding(
                    f"reward `{found.reward.name}` asks the same several times, and takes the "
                    "best reply",
                    place_of(found.reward, view),
                    related=(label(view, "here", event.file, event.node),),
                    help="take the mean or the majority of the replies",
                )
                break


def _seen(part: Part) -> python.AST | None:
    """Return the score of a text that is in a set of the file, if a text that is not yet there gets
    another score and is then put there."""
    import ast as python

    given: dict[str, tuple[object, python.AST]] = {}
    blocks = [
        block
        for node in (part.nodes() if part.is_reward else ())
        for block in (getattr(node, "body", None), getattr(node, "orelse", None))
        if isinstance(block, list)
    ]
    for node in (node for block in blocks for node in block):
        match node:
            case python.If(
                test=python.Compare(ops=[python.In()], comparators=[python.Name(id=name)]),
                body=[python.Return(value=python.Constant(value=score))],
            ) if name in part.file.assigned:
                given[name] = score, node.body[0]
    for first, second in (pair for block in blocks for pair in itertools.pairwise(block)):
        match first, second:
            case (
                python.Expr(
                    value=python.Call(
                        func=python.Attribute(value=python.Name(id=name), attr="add" | "append")
                    )
                ),
                python.Return(value=python.Constant(value=score)),
            ) if name in given and given[name][0] != score:
                return given[name][1]
    return None


def _counted(part: Part) -> python.AST | None:
    """Return the statement by which a reward raises a number of its file that its score depends
    on."""
    import ast as python

    from forgedsl.lint.python_bodies import Body

    functions = (n for n in part.roots if isinstance(n, python.FunctionDef) and n.name == part.top)
    for function in functions if part.is_reward else ():
        body = Body(function, part.file.module)
        read = {name for value in body.returned for name in body.names(value)}
        for node in python.walk(function):
            if not isinstance(node, python.AugAssign):
                continue
            at: python.expr = node.target
            while isinstance(at, python.Subscript | python.Attribute):
                at = at.value
            name = getattr(at, "id", "")
            is_number = isinstance(node.value, python.Constant)
            if name in read and name in part.file.assigned and is_number:
                return node
    return None


def _moving(found: PythonReward) -> tuple[str, python.AST] | None:
    """Return an attribute that each call updates, and the return statement that subtracts it."""
    import ast as python

    changed = set()
    for node in python.walk(found.definition):
        target: python.expr | None = None
        value: python.expr | None = None
        if isinstance(node, python.AugAssign):
            target, value = node.target, node.value
        elif isinstance(node, python.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        if not isinstance(target, python.Attribute) or value is None:
            continue
        own = python.unparse(target)
        is_own = any(python.unparse(n) == own for n in python.walk(value))
        if own.startswith("self.") and (is_own or isinstance(node, python.AugAssign)):
            changed.add(own)
    for node in python.walk(found.definition):
        for each in (
            python.walk(node.value) if isinstance(node, python.Return) and node.value else ()
        ):
            if isinstance(each, python.BinOp) and isinstance(each.op, python.Sub):
                own = python.unparse(each.right)
                if own in changed:
                    return own.removeprefix("self."), node
    return None
