"""Completions that end together reach the controller in packets, each with its own text."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from forgedsl_runtime.data_types import Message
from forgedsl_runtime.services.vllm.actor import PACKET, Generator, _InFlight
from forgedsl_runtime.services.vllm.upstream.engine import Finished


def test_completions_that_end_together_are_sent_in_packets() -> None:
    sent: list[Message] = []
    generator: Any = object.__new__(Generator)
    generator._port = SimpleNamespace(send=sent.append)
    generator._engine = SimpleNamespace(texts=lambda done: [f"text {d.request_id}" for d in done])
    count = 2 * PACKET + 3
    ended = [
        (
            Finished(
                request_id=f"{i}", token_ids=[i, 2], logprobs=[-1.0, float("nan")], text=None,
                truncated=False,
            ),
            _InFlight(version=3, started=time.time(), running=0),
        )
        for i in range(count)
    ]  # fmt: skip
    generator._deliver(ended, 4, time.time())
    assert [len(message.completions) for message in sent] == [PACKET, PACKET, 3]
    found = [completion for message in sent for completion in message.completions]
    assert [each.id for each in found] == [f"{i}" for i in range(count)]
    assert all(each.text == f"text {each.id}" for each in found)
    assert all((each.version_min, each.version_max) == (3, 4) for each in found)
    assert (found[0].logprobs, found[0].mask) == ([-1.0, 0.0], [True, False])


def test_an_error_while_decoding_reaches_the_controller() -> None:
    sent: list[Message] = []
    generator: Any = object.__new__(Generator)
    generator._port = SimpleNamespace(send=sent.append)
    generator._engine = SimpleNamespace(texts=lambda done: [][1])
    done = Finished(request_id="a", token_ids=[], logprobs=[], text=None, truncated=True)
    generator._deliver([(done, _InFlight(version=0, started=0.0, running=0))], 0, 0.0)
    assert "IndexError" in sent[0].error
