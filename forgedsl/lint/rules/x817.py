"""X817 lenient-check: a Python reward accepts answers that are not the target.

    return float(target in response)                 # fires: "3" is in "13", and in every long text
    answer = found.group(1) if found else "0"        # fires: no answer is the answer 0
    return float(answer == target)
    return float(answers(response)[-1:] == [target])                      # silent
    if found is None: return 0.0                     # silent

    return float(answer in target)                   # fires: an empty answer is in every target
    answer = number.rstrip("0").rstrip(".")          # fires: 100 becomes 1
    return float(answer.startswith(target))          # fires: 12 begins with 1
    math.isclose(answer, target, rel_tol = 0.5)      # fires: 60 is taken for 100
    math.isclose(answer, target, rel_tol = 0.05)     # fires for whole numbers: 98 is taken for 100
    abs(answer - target) <= 2.0 * abs(target)        # fires: 2 percent were meant
    any(int(x) == target for x in ANSWER.findall(response))      # fires: one right guess is enough

The policy finds such a text sooner than the answer. In verifiers #763 a substring search rewarded
21 where 1 was right. A default for a missing answer is rewarded whenever the target happens to
equal it. Extract the answer from the response, return 0 if there is none, and compare. The rule
also fires for the steps of an environment that accepts any one of many answers.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.hir.pycalls import Inputs, inputs_of
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import is_counted
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

    from forgedsl.lint.follow.run import Flow
    from forgedsl.lint.follow.values import Event, Value
    from forgedsl.lint.python_bodies import Body

finding = rule(__doc__, "W")
CONTAINS = "a response that contains the target anywhere"
OFF = "accepts numbers that are more than 5 % off"
ANY = "rewards a response if any one of several answers is right"
MATCHES = ("re.search", "re.match", "re.fullmatch", "re.findall")
SEARCHES = ("find", "rfind", "index", "count", "__contains__")
ROUGH, ROUGH_OF_COUNTS = 0.05, 0.005
"""the largest relative tolerance of published graders; that for whole numbers, of which 201 is then
taken for 200"""
HELP = "take the answer out of the response, and compare it by `==`"
HELPS = {
    "finds no answer": "return 0 where there is no answer",
    "zeros": "compare numbers: `float(answer) == float(target)`",
    "expression": "`re.escape(target)` in the pattern, or compare by `==`",
    "each word": "reward precision too: `2 * hits / (len(said) + len(gold))`",
    " off": "allow a relative error of 1e-6, or at most 0.05 for measured values",
    "several": "compare the last answer alone, or give 0 if there are several",
}
"""help by a word of the message"""


def check(view: View) -> Findings:
    for found in python_rewards(view):
        seen = found.once(_mistakes)
        if seen is None:
            continue  # one mistake, one message: X811
        mistakes = ((what, Label(text="here", span=found.at(node))) for what, node in seen)
        for what, here in itertools.chain(mistakes, _by_flow(view, found)):
            yield finding(
                f"reward `{found.reward.name}` {what}",
                place_of(found.reward, view),
                related=(here,),
                help=next((help_ for word, help_ in HELPS.items() if word in what), HELP),
            )
            break
    for env in python_environments(view):
        loose = _loose(view, env)
        if loose is not None:
            yield finding(
                f"environment `{env.env.name}` {loose[0]}",
                env.env.name_span,
                related=(loose[1],),
                help="compare the answer with the target by `==`",
            )
            continue
        guess = _any_guess(env)
        if guess is not None:
            yield finding(
                f"environment `{env.env.name}` {ANY}",
                env.env.name_span,
                related=(Label(text="here", span=env.at(guess)),),
                help=HELPS["several"],
            )


def _loose(view: View, env: PythonClass) -> tuple[str, Label] | None:
    """Return a score of an environment that asks only if one text is part of another one."""
    import ast as python

    from forgedsl.lint.follow.programs import environment_flows, label
    from forgedsl.lint.follow.values import IS_TARGET, LISTED, RESPONSE, TEXT

    own = [item for name, item in env.methods.items() if name not in env.tools]
    given = {
        id(each)
        for method in own
        for node in python.walk(method)
        if isinstance(node, python.Return) and node.value is not None
        for each in python.walk(node.value)
    }
    for event in (e for m in environment_flows(view, env) for e in m.flow.events):
        if event.kind != "compare" or id(event.node) not in given or not _is_in(event.node):
            continue
        part, whole = (value.labels for value in event.values[:2])
        here = label(view, "here", event.file, event.node)
        said = RESPONSE in event.values[1].all and LISTED not in whole
        if {IS_TARGET, TEXT} <= part and said and TEXT in whole:
            return "rewards an answer that contains the target anywhere", here
        if RESPONSE in part and TEXT in part and {IS_TARGET, TEXT} <= whole:
            return "rewards an answer that is a part of the target, an empty one too", here
    return None


def _mistakes(found: PythonReward) -> list[tuple[str, python.AST]] | None:
    """Return mistakes in the source of a reward: (message, place). None if X811 reports it."""
    from forgedsl.lint.python_returns import wrong

    if wrong(found.definition)[1] is not None:
        return None
    inputs = inputs_of(found.function)
    given = inputs.by_name if isinstance(inputs, Inputs) and not inputs.lists else {}
    targets = {name for name, source in given.items() if source == "target"}
    texts = {name for name, source in given.items() if source == "response"}
    return [*_part(found, targets, texts), *_default(found, targets), *_more(found)]


def _by_flow(view: View, found: PythonReward) -> Iterator[tuple[str, Label]]:
    """Yield searches for the target in the whole response, and comparisons of it with a default,
    also those in helper functions and under other names."""
    from forgedsl.lint.follow.programs import label, reward_flow
    from forgedsl.lint.follow.values import (
        DEFAULT,
        FOUND,
        IS_RESPONSE,
        IS_TARGET,
        LISTED,
        RESPONSE,
        TARGET,
    )
    from forgedsl.lint.python_bodies import unpaid

    flow = reward_flow(view, found)
    zero = unpaid(flow.file.module) if flow is not None else frozenset[int]()
    for event in flow.events if flow is not None else ():
        if id(event.node) in zero:
            continue
        here = label(view, "here", event.file, event.node)
        if event.kind == "any" and _is_any_guess(event):
            yield ANY, here
        if event.kind == "call":
            yield from ((what, here) for what in _called(event))
            if _tolerance(event) > ROUGH_OF_COUNTS and is_counted(view):
                yield "accepts whole numbers that are more than 0.5 % off", here
        if event.kind == "compare" and (off := _allowed(view, flow, event)):
            yield off, here
        sides = event.values if event.kind != "change" else ()
        is_pair = event.kind in ("compare", "difference") or event.name.endswith("isclose")
        if not is_pair or len(sides) < 2:
            continue
        one, other = sides[:2]
        if event.kind == "compare" and _is_in(event.node):
            if IS_TARGET in one.labels and IS_RESPONSE in other.labels:
                yield f"rewards {CONTAINS}", here
            elif IS_TARGET in one.labels and {FOUND, LISTED, RESPONSE} <= other.labels:
                yield ANY, here
            continue
        for said, wanted in ((one, other), (other, one)):
            if DEFAULT in said.labels and TARGET in wanted.labels and TARGET not in said.labels:
                yield "compares a default with the target where it finds no answer", here


def _called(event: Event) -> Iterator[str]:
    """Yield what is wrong with a call that searches or compares."""
    from forgedsl.lint.follow.values import IS_RESPONSE, IS_TARGET

    part, whole = _searched(event)
    if part is not None and _is_pattern(event, part):
        yield "searches for the target as a regular expression: the point of 3.5 is any character"
    if part is not None and IS_TARGET in part.labels and IS_RESPONSE in whole.labels:
        yield f"rewards {CONTAINS}"
    side = _begins(event)
    if side:
        yield f"rewards an answer that {side} the target"
    if _tolerance(event) > ROUGH:
        yield OFF


def _begins(event: Event) -> str:
    """Return what a call of `startswith` or `endswith` compares: its beginning or
    end, or a piece of it; "" for other calls."""
    from forgedsl.lint.follow.values import IS_RESPONSE, IS_TARGET, RESPONSE, TARGET

    short = event.name.rpartition(".")[2]
    if short not in ("startswith", "endswith") or not event.values:
        return ""
    whole, part = event.receiver.all, event.values[0].all
    if RESPONSE in whole and {TARGET, IS_TARGET} <= part and TARGET not in whole:
        return "only begins with" if short == "startswith" else "only ends with"
    said = {RESPONSE, IS_RESPONSE} & part and TARGET not in part
    return "is only a piece of" if said and IS_TARGET in whole and RESPONSE not in whole else ""


def _tolerance(event: Event) -> float:
    """Return the relative tolerance of `math.isclose` and the like; 0.0 for other calls."""
    from forgedsl.lint.follow.values import READS_RESPONSE, READS_TARGET, all_of

    if event.name.rpartition(".")[2] not in ("isclose", "allclose", "approx"):
        return 0.0
    given = event.keywords.get("rel_tol", event.keywords.get("rtol"))
    number = given.const if given is not None else None
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    both = {READS_RESPONSE, READS_TARGET} <= all_of(event.values[:2])
    return float(number) if is_number and both else 0.0  # type: ignore[arg-type]


def _allowed(view: View, flow: Flow | None, event: Event) -> str:
    """Return what is wrong with a comparison of a distance to the target with a limit: `abs(said -
    gold) <= 2 * abs(gold)`; "" if nothing is. Steps of a partial reward are left out."""
    import ast as python

    from forgedsl.lint.follow.values import DISTANCE, RELATIVE

    values, op = event.values[:2], event.node.ops[0]  # type: ignore[attr-defined]
    if isinstance(op, python.Gt | python.GtE):
        values = values[::-1]
    elif not isinstance(op, python.Lt | python.LtE):
        return ""
    far, most = values
    scores = {n for each in (flow.returned if flow else ()) for n in each.value.numbers if n > 0}
    limit = most.const if isinstance(most.const, int | float) else 0.0
    relative = most.share or (limit if RELATIVE in far.labels else 0.0)
    events = flow.events if flow else ()
    others = [e for e in events if e.kind == "compare" and e.node is not event.node]
    steps = any({DISTANCE, RELATIVE} & v.labels for e in others for v in e.values)
    if not {DISTANCE, RELATIVE} & far.labels or len(scores) > 1 or steps:
        return ""
    if relative > ROUGH:
        return OFF
    includes = isinstance(op, python.LtE | python.GtE)
    is_whole = DISTANCE in far.labels and (limit > 1 or (limit == 1 and includes))
    return "accepts whole numbers that are off by 1" if is_whole and is_counted(view) else ""


def _is_pattern(event: Event, part: Value) -> bool:
    """True for a pattern that is made of the target without `re.escape`. A parameter or a column
    whose name says that it is a pattern is left out."""
    import ast as python

    from forgedsl.lint.follow.values import ESCAPED, IS_TARGET, RESPONSE, TARGET

    text = python.unparse(event.node).lower()
    is_made = TARGET in part.labels and not {ESCAPED, IS_TARGET} & part.labels
    return (
        is_made
        and event.name in MATCHES
        and RESPONSE in event.values[1].labels
        and not any(word in text for word in ("pattern", "regex", "escape", "rule"))
    )


def _is_any_guess(event: Event) -> bool:
    """True for `any(... for guess in guesses)`, where the guesses are found in the response, and
    each is compared with the target."""
    from forgedsl.lint.follow.values import CLOSE, LISTED, READS_TARGET, RESPONSE, VERDICT

    over, each = event.values
    is_list = {LISTED, RESPONSE} <= over.all and READS_TARGET not in over.all
    return is_list and bool({VERDICT, CLOSE} & each.all)


def _searched(event: Event) -> tuple[Value | None, Value]:
    """Return what a call searches, and where: `text.find(part)`, `re.search(part, text)`."""
    values = event.values
    if event.name.startswith("re.") and len(values) > 1:
        return values[0], values[1]
    if event.name.rpartition(".")[2] in SEARCHES and values:
        return values[0], event.receiver
    return None, event.receiver


def _is_in(node: python.AST) -> bool:
    return type(node.ops[0]).__name__ in ("In", "NotIn")  # type: ignore[attr-defined]


def _more(found: PythonReward) -> Iterator[tuple[str, python.AST]]:
    """Yield (message, place) of further mistakes: a search for the answer in the target, zeros
    stripped from whole numbers, a share of the target, comparisons with each of many guesses."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of, name_of, parameters, texts_of
    from forgedsl.types.effects import nodes_of

    body, targets, texts = body_of(found), parameters(found, "target"), texts_of(found)
    written = {
        argument.arg
        for argument in found.definition.args.args
        if getattr(argument.annotation, "id", "") == "str"
    }
    for value in body.returned:
        if _is_recall(body, _plain(value), found):
            yield "rewards each word of the target that is named, and ignores other words", value
    for node in nodes_of(found.definition):
        match node:
            case python.Compare(left=left, ops=[python.In()], comparators=[right]):
                whole = body.value(right)
                name = name_of(whole)
                said = body.names(left) & texts and not body.names(left) & targets
                if said and name in targets and (_converts(whole) or name in written):
                    yield "rewards an answer that is a part of the target, an empty one too", node
            case python.Call(
                func=python.Attribute(attr="rstrip", value=inner),
                args=[python.Constant(value="0" | "0." | ".0")],
            ):
                if body.names(inner) & (texts | targets) and not _has_point(body, inner):
                    yield "strips the zeros at the end of whole numbers: 100 becomes 1", node
            case python.Compare(
                left=python.Subscript(slice=python.Slice(lower=None) as one),
                ops=[python.Eq()],
                comparators=[python.Subscript(slice=python.Slice(lower=None) as two)],
            ) if one.upper is not None and two.upper is not None:
                sides = [body.names(each) for each in (node.left, node.comparators[0])]
                if any(a & texts and b & targets for a, b in (sides, sides[::-1])):
                    yield "compares only the first characters of answer and target", node
            case python.Call(func=python.Name(id="any"), args=[python.GeneratorExp() as each]):
                over = each.generators[0].iter
                compares = isinstance(each.elt, python.Compare) and body.names(each.elt) & targets
                if compares and _lists(over) and body.names(over) & texts:
                    yield ANY, node


def _plain(value: python.expr) -> python.expr:
    """Return what `float`, `round` or `min(1.0, ...)` is given."""
    import ast as python

    match value:
        case python.Call(func=python.Name(id="float" | "round"), args=[inner, *_]):
            return _plain(inner)
        case python.Call(func=python.Name(id="min"), args=[python.Constant(), inner]):
            return _plain(inner)
        case python.IfExp(body=inner, orelse=python.Constant()):
            return _plain(inner)
    return value


def _is_recall(body: Body, share: python.expr, found: PythonReward) -> bool:
    """True for `len(said & gold) / len(gold)`, and other spellings of it, if nothing counts what
    else was said."""
    import ast as python

    match share:
        case python.BinOp(left=left, op=python.Div(), right=right):
            hits, whole = body.value(left), body.value(right)
        case _:
            return False
    gold = _counted(body, whole)
    sides = _shared(body, hits)
    wanted = python.unparse(gold) if gold is not None else ""
    said = next(iter(sides - {wanted}), "") if wanted in sides else ""
    counts = {f"len({said})", f"{said} - {wanted}", f"{said} ^ {wanted}", f"{said} | {wanted}",
              f"{said} <= {wanted}", f"{said} == {wanted}", f"{said}.difference({wanted})",
              f"{said}.union({wanted})", f"{wanted}.union({said})"}  # fmt: skip
    text = python.unparse(found.definition)
    return bool(said) and not any(count in text for count in counts)


def _shared(body: Body, hits: python.expr) -> set[str]:
    """Return the two sets whose common members are counted, as texts: `a` and `b` of `len(a & b)`,
    of `len(a.intersection(b))`, and of `sum(x in a for x in b)`."""
    import ast as python

    match hits:
        case python.Call(func=python.Name(id="sum"), args=[inner]):
            counted: python.expr | None = inner
        case _:
            counted = _counted(body, hits)
    match counted and body.value(counted):
        case python.BinOp(left=left, op=python.BitAnd(), right=right):
            return {python.unparse(left), python.unparse(right)}
        case python.Call(func=python.Attribute(attr="intersection", value=left), args=[right]):
            return {python.unparse(left), python.unparse(right)}
        case python.GeneratorExp() | python.ListComp() | python.SetComp() as each:
            over = each.generators[0]
            for test in (each.elt, *over.ifs):
                match test:
                    case python.Compare(ops=[python.In()], comparators=[other]):
                        return {python.unparse(other), python.unparse(over.iter)}
    return set()


def _counted(body: Body, node: python.expr) -> python.expr | None:
    """Return what `len` counts, also in `max(1, len(x))`."""
    import ast as python

    match node:
        case python.Call(func=python.Name(id="len"), args=[inner]):
            return inner
        case python.Call(func=python.Name(id="max"), args=[one, two]):
            return _counted(body, one) or _counted(body, two)
        case python.BoolOp(op=python.Or(), values=[one, python.Constant()]):
            return _counted(body, one)
    return None


def _converts(value: python.expr) -> bool:
    """True if a value is made a text, or treated as one: `str(target)`, `target.lower()`."""
    import ast as python

    from forgedsl.lint.python_bodies import TEXTUAL

    return any(
        isinstance(node, python.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("str", *TEXTUAL)
        for node in python.walk(value)
    )


def _has_point(body: Body, text: python.expr) -> bool:
    """True if a text has decimals, or is tested for a point before its zeros are stripped."""
    import ast as python

    formatted = any(
        isinstance(node, python.JoinedStr)
        or (isinstance(node, python.Call) and getattr(node.func, "attr", "") == "format")
        or (isinstance(node, python.Call) and getattr(node.func, "id", "") in ("float", "format"))
        for node in body.nodes(text)
    )
    return formatted or any(
        isinstance(node, python.Compare)
        and isinstance(node.left, python.Constant)
        and node.left.value == "."
        for node in python.walk(body.root)
    )


def _lists(node: python.expr) -> bool:
    """True for a list of all matches of a pattern."""
    return getattr(getattr(node, "func", None), "attr", "") in ("findall", "finditer")


def _any_guess(env: PythonClass) -> python.AST | None:
    """Return a comparison of every match in a turn with what the environment keeps."""
    import ast as python

    for method in env.methods.values():
        for node in python.walk(method):
            match node:
                case python.Call(func=python.Name(id="any"), args=[python.GeneratorExp() as each]):
                    over, elt = each.generators[0].iter, each.elt
                    is_equal = isinstance(elt, python.Compare) and isinstance(elt.ops[0], python.Eq)
                    said = _lists(over) and "turn.text" in python.unparse(over)
                    if said and is_equal and "self." in python.unparse(elt):
                        return node
    return None


def _part(
    found: PythonReward, targets: set[str], texts: set[str]
) -> Iterator[tuple[str, python.AST]]:
    """Yield substring searches for the target in the whole response."""
    import ast as python

    from forgedsl.lint.python_bodies import name_of, unpaid
    from forgedsl.types.effects import nodes_of

    zero = unpaid(found.module)
    for node in nodes_of(found.definition):
        if not isinstance(node, python.Compare) or not isinstance(node.ops[0], python.In):
            continue
        if id(node) in zero:
            continue
        if name_of(node.left) in targets and name_of(node.comparators[0]) in texts:
            yield f"rewards {CONTAINS}", node


def _default(found: PythonReward, targets: set[str]) -> Iterator[tuple[str, python.AST]]:
    """Yield names that are compared with the target and have a constant default if no answer was
    found."""
    import ast as python

    from forgedsl.lint.python_bodies import name_of
    from forgedsl.types.effects import nodes_of

    nodes = list(nodes_of(found.definition))
    compared = set()
    for node in nodes:
        if isinstance(node, python.Compare) and isinstance(node.ops[0], python.Eq):
            sides = [name_of(node.left), name_of(node.comparators[0])]
        elif isinstance(node, python.BinOp) and isinstance(node.op, python.Sub):
            sides = [name_of(node.left), name_of(node.right)]
        else:
            continue
        if {*sides} & targets:
            compared |= {*sides} - targets - {""}
    inside = [
        node
        for handler in nodes
        if isinstance(handler, python.ExceptHandler)
        for node in python.walk(handler)
    ]
    for node in nodes:
        if not isinstance(node, python.Assign) or name_of(node.targets[0]) not in compared:
            continue
        value = node.value
        last = value.orelse if isinstance(value, python.IfExp) else value
        if last is value and node not in inside:
            continue
        if _is_answer(last):
            yield f"takes `{python.unparse(last)}` as the answer where it finds no answer", node


def _is_answer(value: python.expr) -> bool:
    """True if a constant could be an answer: a number, or a text that is not empty."""
    import ast as python

    if isinstance(value, python.UnaryOp):
        value = value.operand
    text = value.value if isinstance(value, python.Constant) else None
    return isinstance(text, int | float | str) and not isinstance(text, bool) and text != ""
