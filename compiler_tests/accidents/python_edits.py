"""Random single edits of environments and Python rewards, and what lint says of them.

    number -> base, edit -> lint: told or silent; players: harmful or harmless

The bases are Python files of shipped pipelines and of right programs. An oracle that does not use
the rules plays them: a reward is called with right, wrong and empty answers, an environment is
played by players who answer right, wrong, nothing, or with what they were shown. An edit is
harmful if a right answer no longer scores more than each of the others, if the program fails, or if
the player who answers with what it was shown is paid.

The players are its own. `lint --deep` has players too (`runtime/forgedsl_runtime/probes`), and
reports what these find: as an oracle they would only agree with themselves.

    python -m compiler_tests.accidents.python_edits 300 [first] [deep]    counts, what is missed or
                                                                          told; deep: by `--deep`
"""

import ast
import asyncio
import copy
import inspect
import random
import sys
import types
from dataclasses import dataclass
from functools import cache

from forgedsl.environment import Call, Environment, Task, Turn

from .corpus import PIPELINES, found, pipeline, right

TARGET = "42"
NOT_PLAYED = (
    "requests",
    "openai",
    "subprocess",
    "numpy",
    "math_verify",
    "runtime.sandbox",
    "while",
)
"""what the oracle cannot have: other machines, programs, packages that need not be installed"""
ANSWERS = {
    "right": "<think>a\nb</think><answer>42</answer>",
    "other": "<think>a\nb</think><answer>17</answer>",
    "near": "<think>42\nb</think><answer>4</answer>",
    "empty": "",
    "bare": "<answer></answer>",
    "zero": "<answer>0</answer>",
    "words": "the final answer is not 42, done",
}
TURNS = 3


@dataclass(frozen=True)
class Base:
    """A right program with one Python file. `name` is that of its class or function."""

    title: str
    text: str
    file: str
    code: str
    others: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Verdict:
    name: str
    harm: str
    told: tuple[str, ...]


@cache
def bases():
    """Right programs whose Python the oracle can play, and that it finds right."""
    shipped = [("guess_math", "environments/sums.py"), ("desk", "environments/desk.py")]
    all_ = [
        Base(name, pipeline(name).replace(path, "own.py"), "own.py",
             (PIPELINES / path).read_text("utf-8"))
        for name, path in shipped
    ]  # fmt: skip
    for case in right():
        if len(case.files) == 1 and not any(word in case.files[0][1] for word in NOT_PLAYED):
            all_.append(Base(case.name, case.text, *case.files[0]))
    return [base for base in all_ if harm(base.code, base.text) == ""]


# ---- edits


def edits(code):
    """(what, code) of all single edits of a program."""
    tree = ast.parse(code)
    result = []
    for place, node in enumerate(ast.walk(tree)):
        for what, change in _changes(node):
            other = copy.deepcopy(tree)
            target = next(n for k, n in enumerate(ast.walk(other)) if k == place)
            change(target)
            text = ast.unparse(ast.fix_missing_locations(other))
            line = getattr(node, "lineno", 0)
            shown = code.splitlines()[line - 1].strip() if line else ""
            if text != ast.unparse(tree):
                result.append((f"{what}: {shown}", text))
    return result


FLIPPED = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def _changes(node):
    """(what, change of a node) of the edits that are made at a node."""

    def put(**fields):
        return lambda n: [setattr(n, name, value) for name, value in fields.items()]

    match node:
        case ast.Compare(ops=[op]) if type(op) in FLIPPED:
            yield "comparison", put(ops=[FLIPPED[type(op)]()])
            if isinstance(op, ast.Eq):
                yield "equal becomes in", put(ops=[ast.In()])
        case ast.BoolOp(op=op, values=values):
            yield "and, or", put(op=FLIPPED[type(op)]())
            yield "part of a test lost", put(values=[values[0], values[0]])
            yield "part of a test lost", put(values=[values[-1], values[-1]])
        case ast.If(body=body, orelse=orelse):
            yield "test lost", put(test=ast.Constant(True))
            yield "branch lost", put(test=ast.Constant(False))
        case ast.IfExp(body=body, orelse=orelse):
            yield "branches exchanged", put(body=orelse, orelse=body)
        case ast.Constant(value=float(number)):
            for other in (0.0, 1.0, -number, number / 2):
                yield "number", put(value=other)
        case ast.Constant(value=bool(flag)):
            yield "flag", put(value=not flag)
        case ast.Constant(value=str(text)) if "<answer>" in text:
            yield "tag", put(value=text.replace("answer", "result"))
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in ("strip", "lower"):
            yield "call lost", put(func=ast.Name("str", ast.Load()), args=[inner])
        case ast.Call(func=ast.Attribute(attr="search")):
            yield "search becomes match", put(func=_renamed(node.func, "match"))
        case ast.Call(keywords=[_, *_] as words):
            for word in words:
                kept = [each for each in words if each is not word]
                yield "argument lost", put(keywords=kept)
        case ast.Return(value=ast.expr()):
            yield "return lost", put(value=ast.Constant(0.0))
        case ast.Attribute(value=ast.Name(id="task"), attr="target" | "text" as attr):
            yield "attribute", put(attr="text" if attr == "target" else "target")
        case ast.Name(id=name, ctx=ast.Load()) if name in ("response", "target"):
            yield "name", put(id="target" if name == "response" else "response")
        case ast.Call(func=ast.Attribute(attr="Step" | "Start")):
            return
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Step", "Start"):
        shown = ast.parse("str(vars(self))", mode="eval").body
        if node.args:
            yield "observation", put(args=[shown, *node.args[1:]])


def _renamed(function, name):
    function = copy.deepcopy(function)
    function.attr = name
    return function


# ---- oracle


def harm(code, text):
    """What the players find wrong with a program, "" if nothing."""
    module = types.ModuleType("edited")
    sys.modules["edited"] = module
    try:
        exec(compile(code, "own.py", "exec"), module.__dict__)
        classes = [
            each for each in vars(module).values()
            if isinstance(each, type) and issubclass(each, Environment)
            and each.__module__ == "edited"
        ]  # fmt: skip
        if classes:
            return _harm_of_environment(classes[-1], code)
        return _harm_of_reward(module, text)
    except (Exception, RecursionError) as error:
        return f"fails: {type(error).__name__}"


def _harm_of_reward(module, text):
    functions = [f for n, f in vars(module).items() if inspect.isfunction(f) and f"own.{n}" in text]
    if not functions:
        return "no reward"
    function = functions[-1]
    wanted = inspect.signature(function).parameters
    scores = {}
    for name, answer in ANSWERS.items():
        given = {"prompt": "p", "response": answer, "target": TARGET, "completion": answer}
        if not {*wanted} <= {*given}:
            return "no reward"
        scores[name] = float(function(**{word: given[word] for word in wanted}))
    best = max(score for name, score in scores.items() if name != "right")
    return "" if scores["right"] > best else "a right answer is not paid more"


def _harm_of_environment(kind, code):
    text = "#12*3+6=" if "ORDER" in code else "40+2="
    totals = {name: _played(kind, text, name) for name in ("right", "other", "empty", "copied")}
    if totals["right"] <= max(totals["other"], totals["empty"]):
        return "a right answer is not paid more"
    return "" if totals["right"] > totals["copied"] else "tells the answer"


def _played(kind, text, player):
    game, shown = kind(), ""
    start = game.reset(Task(text=text, target=TARGET), random.Random(5))
    shown += str(start.observation)
    due, total = str(getattr(game, "due", TARGET)), 0.0
    for number in range(TURNS):
        said = {"right": f"<answer>{due}</answer>", "other": "<answer>17</answer>", "empty": ""}
        guess = due if due in shown.replace(text, "") else "18"
        turn = Turn(text=said.get(player, f"<answer>{guess}</answer>"), number=number)
        if kind.__name__ == "Desk" and player == "right" and number == 0:
            turn = Turn(text="", calls=(Call(name="lookup", arguments={"item": "12"}),), number=0)
        step = game.step(turn)
        step = asyncio.run(step) if inspect.isawaitable(step) else step
        total += step.rewards.get("solved", step.rewards.get("right", 0.0))
        shown += str(step.observation)
        if step.done:
            break
    return total


# ---- counts


@cache
def all_edits():
    """(base, what, code) of all edits, in a random order that is always the same."""
    each = [(base, *edit) for base in bases() for edit in edits(base.code)]
    random.Random(23).shuffle(each)
    return each


def verdict(number, is_deep=False):
    base, what, code = all_edits()[number]
    all_ = found(base.text, ((base.file, code), *base.others), is_deep)
    told = tuple(sorted({code for code, _, _ in all_}))
    return Verdict(f"{number} {base.title[:40]}, {what}", harm(code, base.text), told)


def rates(verdicts):
    """(harmful, told of these, harmless, told of these)"""
    harmful = [v for v in verdicts if v.harm]
    harmless = [v for v in verdicts if not v.harm]
    return (
        len(harmful), sum(bool(v.told) for v in harmful),
        len(harmless), sum(bool(v.told) for v in harmless),
    )  # fmt: skip


if __name__ == "__main__":
    is_deep = "deep" in sys.argv
    numbers = [int(word) for word in sys.argv[1:] if word != "deep"]
    asked = range(*sorted((*numbers, 0)[:2]))
    verdicts = [verdict(number, is_deep) for number in asked]
    for each in verdicts:
        if bool(each.harm) != bool(each.told):
            print("MISSED" if each.harm else "FALSE ", each.name, "|", each.harm, each.told)
    harmful, caught, harmless, false = rates(verdicts)
    print(f"{caught} of {harmful} harmful edits are told, and {false} of {harmless} harmless ones")
