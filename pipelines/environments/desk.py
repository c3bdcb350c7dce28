"""A desk with two tools: prices are looked up, sums are calculated.

#37*13+85=   lookup("37") -> 47   calculate("47*13+85") -> 696   <answer>696</answer>

Prices are drawn anew for each prompt, so that no policy can know them.
"""

from __future__ import annotations

import ast
import operator
import re
from random import Random

from forgedsl.environment import Environment, Start, Step, Task, Turn, tool

ORDER = re.compile(r"#(\d+)\*(\d+)\+(\d+)=")
ANSWER = re.compile(r"<answer>(\d{1,6})</answer>")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class Desk(Environment):
    """`right` is 1 for the right answer; `lookups` and `sums` are calls of the two tools."""

    parts = ("right", "lookups", "sums")

    def reset(self, task: Task, rng: Random) -> Start:
        self.prices = [rng.randrange(11, 100) for _ in range(100)]
        order = ORDER.fullmatch(task.text)
        if order is None:
            raise ValueError(f"not an order: {task.text}")
        item, count, extra = map(int, order.groups())
        self.due = self.prices[item] * count + extra
        return Start()

    @tool
    def lookup(self, item: str) -> str:
        """The price of an item."""
        return str(self.prices[int(item)]) if re.fullmatch(r"\d{1,2}", str(item)) else "unknown"

    @tool
    def calculate(self, expression: str) -> str:
        """The value of a sum of products."""
        try:
            return str(value(ast.parse(str(expression)[:40], mode="eval").body))
        except (SyntaxError, ValueError):
            return "error"

    async def step(self, turn: Turn) -> Step:
        if turn.calls:
            made = await self.call_tools(turn)
            names = [call.name for call in turn.calls]
            given = {"lookups": names.count("lookup"), "sums": names.count("calculate")}
            return Step(made.observation, {part: float(count) for part, count in given.items()})
        found = ANSWER.search(turn.text)
        right = found is not None and int(found[1]) == self.due
        return Step(rewards={"right": float(right)}, done=True)


def value(node: ast.expr) -> int:
    """Of numbers, +, - and *; anything else is a ValueError."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return int(OPERATORS[type(node.op)](value(node.left), value(node.right)))
    raise ValueError("not a sum of products")
