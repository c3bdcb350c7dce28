"""Cells of a group: filled once, and harmless once the group was given up."""

import asyncio
from dataclasses import replace

import pytest
from fake_endpoints import completion, job

from forgedsl.errors import InternalError, RunError
from forgedsl_runtime.controller.assembly import _set, choose_examples
from forgedsl_runtime.controller.flow import analyse
from forgedsl_runtime.data_types import Prompt, Rollout, Sample
from forgedsl_runtime.endpoints import Score
from forgedsl_runtime.group import GroupState


def in_loop(check):
    async def run():
        flow = analyse(job())
        await check(GroupState(flow, flow.sources[0], 0, "item"))

    asyncio.run(run())


def test_a_cell_is_filled_once():
    async def check(group):
        group.put("score", 1.0, sibling=1)
        with pytest.raises(InternalError, match="already has a value for completion 1"):
            group.put("score", 2.0, sibling=1)

    in_loop(check)


def test_a_cancelled_reader_does_not_harm_the_writer():
    async def check(group):
        given = next(n for n in group.source.nodes if n.name == "adv").inputs[0]
        readers = [asyncio.create_task(group.wait_for_inputs([given])) for _ in range(2)]
        await asyncio.sleep(0)
        readers[0].cancel()
        await asyncio.wait({readers[0]})
        for sibling in range(4):
            group.put("score", float(sibling), sibling=sibling)
        assert await readers[1] == ([0, 1, 2, 3], [[0.0, 1.0, 2.0, 3.0]])

    in_loop(check)


def test_values_that_come_after_a_group_left_its_batch_are_ignored():
    async def check(group):
        group.abandon("gone")
        group.put("score", 1.0, sibling=1)
        assert group.live("score") == {}

    in_loop(check)


def test_an_example_has_the_other_answers_of_its_group_in_brief() -> None:
    prompt = Prompt(group=0, row=0, text="1+1=", token_ids=[1], target="2")

    def scored(group: int, sibling: int, score: float, response: str) -> tuple[Rollout, Score]:
        made = completion(prompt, group, sibling, 1, 0)
        return replace(made, text=response), Score(value=score, parts={"correct": score})

    long = "a" * 300 + "b" * 300
    completions = [scored(0, 0, 1.0, "2"), scored(0, 1, 0.0, long), scored(1, 0, 0.5, "3")]
    best, worst = choose_examples(completions, 2)
    assert (best["response"], worst["response"]) == ("2", long)
    brief = f"{'a' * 200} ... {'b' * 200}"
    other = {"sibling": 1, "score": 0.0, "truncated": False, "response": brief}
    assert best["siblings"] == [other]


def test_a_field_that_is_no_number_ends_the_run_with_its_place():
    node = analyse(job()).sources[0].node
    sample = Sample(token_ids=[1, 2], num_prompt=1, mask=[True])
    with pytest.raises(
        RunError, match="`adv` of a completion is 'Paris', which is not a number"
    ) as found:
        _set(sample, "adv", "Paris", node)
    assert found.value.origin == node.origin
