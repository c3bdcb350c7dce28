"""D660 calls-unlearned: only the last turn is learned, and the tool calls stand before it.

    chat = row.messages, learn = last_turn           # fires, if the rows have tool calls
    chat = row.messages, learn = assistant_turns     # silent

In a demonstration with tools the calls are earlier turns of the assistant: with `last_turn` they
are read, and not learned, so the model never calls a tool (ms-swift #7838, slime #1418). The rule
reads the first row of a local file. Learn all turns of the assistant.
"""

from typing import Any

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import first_row
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")
RESULTS = ("tool", "function", "observation", "function_response", "tool_response", "ipython")
"""roles of what a tool returns, in chats and in sharegpt"""


def check(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        learn = dataset.settings["learn"]
        if learn.value == "last_turn" and dataset.settings["chat"].value is not None:
            row = first_row(view, dataset)
            if any(_has_results(each) for each in _lists(row)):
                yield finding(
                    f"the rows of `{dataset.name}` call tools before their last turn, and only the "
                    "last turn is learned",
                    place(learn, dataset),
                    help="`learn = assistant_turns`",
                )


def _lists(row: Any) -> list[list[Any]]:
    return [v for v in row.values() if isinstance(v, list)] if isinstance(row, dict) else []


def _has_results(messages: list[Any]) -> bool:
    roles = [m.get("role", m.get("from")) for m in messages if isinstance(m, dict)]
    return any(role in RESULTS for role in roles[:-1])
