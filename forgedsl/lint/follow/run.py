"""Runs Python programs on labels instead of values. Labels say where a value comes from, and what
it depends on.

    def same(a, b): return a.strip() == b              labels of `same(turn.text, task.target)`:
    ok = same(turn.text, self.gold)                    verdict, reads response, reads target

Calls are followed into functions and methods of the file, and of modules beside it. Nothing is
executed. A run notes the calls and comparisons that it meets (`Flow.events`), and what the program
returns. If `failing` is an `except` clause, the run follows only the path that enters this clause.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from forgedsl.lint.follow.calls import Calls
from forgedsl.lint.follow.files import Function
from forgedsl.lint.follow.values import (
    ARGUMENTS,
    FOUND,
    TAKEN,
    TESTS,
    UNKNOWN,
    Called,
    Env,
    Labels,
    Value,
    content,
    element,
    elements,
    join_envs,
    positional,
)
from forgedsl.records import replace
from forgedsl.types.effects import imports_of

NESTED = 80
"""`if` inside of `if`, or `elif` after `elif`, up to which a run is followed"""


class Flow(Calls):
    """A run of one function or of a method of a class."""

    def call(self, node: Function, given: Mapping[str, Value], *, bound: bool = False) -> Value:
        """Run a function on labels, and keep what it returns."""
        before = len(self.frames)
        named = [*positional(node)[1 if bound else 0 :], *node.args.kwonlyargs]
        words = {a.arg: given[a.arg] for a in named if a.arg in given}
        value = self.apply(Called(node, self.file, bound), [], words, top=True)
        self.raised = False
        assert len(self.frames) == before
        return value

    def block(self, body: Iterable[ast.stmt]) -> bool:
        """Run statements; False if control never comes to their end."""
        for node in body:
            falls = self.statement(node)
            if self.raised:  # a function that was called always raises
                self.raised = False
                return False
            if not falls:
                return False
        return True

    def statement(self, node: ast.stmt) -> bool:
        """Run a statement; False if control does not come to the next one."""
        frame = self.frames[-1]
        self.budget -= 1
        if self.budget < 0:
            return True
        match node:
            case ast.Return():
                value = self.absent(self.value(node.value) if node.value else Value(const=None))
                frame.returned.append((value, node, frame.env[TAKEN], frame.control))
                self.note("return", node, None, values=(value,))
                return False
            case ast.Raise():
                if node.exc:
                    self.thrown |= content([self.value(node.exc)])
                self.raising |= frame.control & TESTS
                return False
            case ast.Break() | ast.Continue():
                frame.left.append(dict(frame.env))
                return False
            case ast.If():
                return self._if(node)
            case ast.For() | ast.AsyncFor():
                over = self.value(node.iter)
                rounds = elements(node.iter, over)
                given = (self._given(node.target, each, node.iter) for each in rounds)
                self._loop([*given] * (2 if len(rounds) == 1 else 1), node.body)
                known = assigned(node.body) & frame.env.keys()
                words: dict[str | None, Value] = {name: frame.env[name] for name in known}
                self.note("loop", node, None, values=(over,), keywords=words)
                return self.block(node.orelse)
            case ast.While():
                test = self.value(node.test)
                self._loop([lambda: self.value(node.test)] * 2, node.body)
                endless = test.const is not UNKNOWN and bool(test.const)
                has_break = any(isinstance(each, ast.Break) for each in ast.walk(node))
                return self.block(node.orelse) and (not endless or has_break)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.value(item.context_expr)
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, value, item.context_expr)
                return self.block(node.body)
            case ast.Try():
                return self._try(node)
            case ast.Match():
                return self._match(node)
        self._simple(node)
        return True

    def _simple(self, node: ast.stmt) -> None:
        """Run a statement after which the next one follows."""
        frame = self.frames[-1]
        match node:
            case ast.Expr(value=value_):
                self.value(value_)
            case ast.Assert(test=value_, msg=message):
                self.raising |= self.value(value_).all & TESTS
                if message is not None:
                    self.thrown |= content([self.value(message)])
            case ast.Assign(targets=targets, value=value_):
                value = self.absent(self.value(value_))
                for target in targets:
                    self.assign(target, value, value_)
            case ast.AnnAssign(target=target, value=ast.expr() as value_):
                self.assign(target, self.absent(self.value(value_)), value_)
            case ast.AugAssign(target=target, value=value_):
                added = self.operation(node.op, self.value(target), self.value(value_))
                added = replace(added, labels=added.labels - {*ARGUMENTS})
                of = target.value if isinstance(target, ast.Subscript) else target
                self.note("change", node, target, receiver=self.value(of))
                self.assign(target, added, value_)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                inner = Called(node, frame.file, closure=dict(frame.env))
                frame.env[node.name] = Value(function=inner)
            case ast.Global(names=names):
                self.note("global", node, None, name=names[0])
                frame.globals |= {*names}
            case ast.Import() | ast.ImportFrom():
                frame.imports |= imports_of(node)
            case ast.Delete(targets=targets):
                for target in targets:
                    self.note("change", target, target)

    def _match(self, node: ast.Match) -> bool:
        subject = self.value(node.subject)
        branches: list[Callable[[], bool]] = []
        control, found, seen = subject.all & TESTS, FOUND in subject.labels, False
        for case in node.cases:
            for each in ast.walk(case.pattern):
                name = getattr(each, "name", None) or getattr(each, "rest", None)
                if isinstance(name, str):
                    self.frames[-1].env[name] = element(subject)
            is_empty = _is_empty(case.pattern)
            matches: object = _is_any(case.pattern) or UNKNOWN
            if self.verdict is not None and found and matches is UNKNOWN:
                matches = not is_empty  # a search in an answer counts as successful
            if case.guard is not None:
                test = self.value(case.guard)
                control |= test.all & TESTS
                if not self.truth(test):
                    matches = False
                elif self.truth(test) is UNKNOWN:
                    matches = UNKNOWN if matches else False
            if matches is False:
                continue
            absent = found and (is_empty or (seen and _is_any(case.pattern)))
            seen = seen or (case.guard is None and not is_empty)
            branches.append(lambda case=case, absent=absent: self._case(case, absent))  # type: ignore[misc]
            if matches is True:
                break
        else:
            branches.append(lambda: True)
        return self._branches(branches, control)

    def _case(self, case: ast.match_case, absent: bool) -> bool:
        frame = self.frames[-1]
        frame.absent += absent
        falls = self.block(case.body)
        frame.absent -= absent
        return falls

    def _if(self, node: ast.If) -> bool:
        if self.nested == NESTED:
            self.budget = -1
            return True
        test = self.value(node.test)
        absent = self.absence(node.test)
        control = test.all & TESTS

        def run(body: list[ast.stmt], is_absent: bool) -> Callable[[], bool]:
            def branch() -> bool:
                frame = self.frames[-1]
                frame.absent += is_absent
                falls = self.block(body)
                frame.absent -= is_absent
                return falls

            return branch

        ways = [run(node.body, absent == "body"), run(node.orelse, absent == "orelse")]
        if self.truth(test) is not UNKNOWN:
            ways = [ways[0] if self.truth(test) else ways[1]]
        self.nested += 1
        falls = self._branches(ways, control)
        self.nested -= 1
        return falls

    def _branches(self, ways: list[Callable[[], bool]], control: Labels) -> bool:
        frame = self.frames[-1]
        before, outer, ends = dict(frame.env), frame.control, []
        frame.control = outer | control
        for way in ways:
            frame.env = dict(before)
            if way():
                ends.append(frame.env)
        frame.env = join_envs(ends) if ends else before
        if len(ends) == len(ways):
            frame.control = outer
        return bool(ends)

    def _given(self, target: ast.expr, value: Value, source: ast.expr) -> Callable[[], None]:
        return lambda: self.assign(target, value, source)

    def _loop(self, rounds: list[Callable[[], Any]], body: list[ast.stmt]) -> None:
        frame = self.frames[-1]
        outer, frame.left = frame.left, []
        ends = [dict(frame.env)]
        for each in rounds:
            each()
            if self.block(body):
                ends.append(dict(frame.env))
            ends += frame.left
            frame.left = []
            frame.env = join_envs(ends)
        frame.left = outer

    def _try(self, node: ast.Try) -> bool:
        frame = self.frames[-1]
        for handler in node.handlers:
            self.handlers.append((handler, node, frame.file))
        before = dict(frame.env)
        failing = self.failing if self.failing in node.handlers else None
        if failing is not None and not before[TAKEN].const:
            if failing.name:
                frame.env[failing.name] = Value()
            frame.env[TAKEN] = Value(const=True)
            return self.block(failing.body) and self.block(node.finalbody)
        ends: list[Env] = []
        raising, self.raising = self.raising, frozenset()
        thrown, self.thrown = self.thrown, frozenset()
        if self.block([*node.body, *node.orelse]):
            ends.append(frame.env)
        middle = join_envs([before, frame.env])
        frame.control |= self.raising
        self.raising |= raising
        said, self.thrown = self.thrown, self.thrown | thrown
        for handler in node.handlers:
            frame.env = dict(middle)
            if handler.name:
                frame.env[handler.name] = Value(said)
            frame.absent += 1
            if self.block(handler.body):
                ends.append(frame.env)
            frame.absent -= 1
        frame.env = join_envs(ends) if ends else middle
        return self.block(node.finalbody) and bool(ends)


def assigned(body: Iterable[ast.stmt]) -> set[str]:
    """Return the names that the statements of a block assign, also in blocks inside."""
    nodes = (each for stmt in body for each in ast.walk(stmt) if isinstance(each, ast.Name))
    return {each.id for each in nodes if isinstance(each.ctx, ast.Store)}


def _is_any(pattern: ast.pattern) -> bool:
    """True for a pattern that matches everything: `_`, or a name."""
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None


def _is_empty(pattern: ast.pattern) -> bool:
    """True for the pattern of nothing: `None`, or `[]`."""
    if isinstance(pattern, ast.MatchSequence):
        return not pattern.patterns
    return isinstance(pattern, ast.MatchSingleton) and not pattern.value
