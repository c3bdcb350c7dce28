"""The log of a trajectory for people: its requests to the policy, in the order of their tokens.

Rollout --log_of--> [{"at", "row", "seen", "tokens", "versions", "start", "seconds", ...}]
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from forgedsl.tool_calls import Call, calls_in
from forgedsl.vllm_parsers import FORM
from forgedsl_runtime.data_types import Answer, Rollout


def log_of(rollout: Rollout) -> list[dict[str, Any]]:
    """Return a record for each answer:

    at          where it is in the rollout's text: [first character, end]
    row         number of its training row, from 0
    seen        number of tokens between the answer before it and this one; for the first answer of
                a row, number of tokens before it in the row
    tokens      tokens of the answer
    versions    [[policy version, tokens that it sampled]]
    start       seconds from the first request of the trajectory
    seconds     time in the engine
    calls       names of the tools that it calls; for a call that cannot be read, its status (such
                as invalid_json) in place of the name
    truncated   true if a limit ended it
    """
    first = min((answer.started for answer in rollout.answers), default=0.0)
    found: list[dict[str, Any]] = []
    ended = row = 0
    for answer in rollout.answers:
        before, row = row, bisect_right(rollout.row_starts, answer.start)
        begun = rollout.row_starts[row - 1] if row != before else ended
        seen = answer.start - begun + (0 if found else len(rollout.prompt.token_ids))
        said = rollout.text[answer.text_start : answer.text_end]
        # parsers of vLLM are not loaded in the controller
        calls = () if rollout.tool_form.startswith(FORM) else calls_in(said, rollout.tool_form)
        found.append(_record(answer, row, seen, calls, first))
        ended = answer.end
    return found


def _record(
    answer: Answer, row: int, seen: int, calls: tuple[Call, ...], first: float
) -> dict[str, Any]:
    return {
        "at": [answer.text_start, answer.text_end],
        "row": row,
        "seen": seen,
        "tokens": answer.end - answer.start,
        "versions": [list(each) for each in answer.versions],
        "start": round(answer.started - first, 3),
        "seconds": round(answer.finished - answer.started, 3),
        "calls": [call.name if call.status == "ok" else call.status for call in calls],
        "truncated": answer.truncated,
    }
