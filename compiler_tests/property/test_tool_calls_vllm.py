"""Tool calls are read as vLLM's parsers read them, in every form. vLLM runs in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from written_calls import CALLS, SAID, WRITERS, fits, schemas

from forgedsl.tool_calls import read

pytestmark = pytest.mark.full
Ask = Callable[[str, str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def vllm() -> Iterator[Ask]:
    program = Path(__file__).with_name("vllm_parsers.py")
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "ready\n":
            assert line, "vLLM's parsers did not start"

        def ask(parser: str, text: str, tools: Any) -> dict[str, Any]:
            asked = {"parser": parser, "text": text, "tools": tools}
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


@pytest.mark.parametrize("writer", sorted(WRITERS))
@given(said=SAID, calls=CALLS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whole_calls_are_those_of_vllm(writer: str, vllm: Ask, said: str, calls: Any) -> None:
    assume(fits(writer, calls))
    assume(len({name for name, _ in calls}) == len(calls))
    text, tools = said + WRITERS[writer](calls), schemas(calls)
    theirs = vllm(writer, text, tools)
    before, ours = read(text, writer.removesuffix("_v11"), tools)
    assert [call.status for call in ours] == ["ok"] * len(calls)
    assert [(call.name, call.arguments) for call in ours] == [
        (name, json.loads(arguments)) for name, arguments in theirs["calls"]
    ]
    # vLLM's parser of Llama drops what is before a call
    if writer != "llama3_json":
        assert (theirs["content"] or "").strip() == before.strip()


@pytest.mark.parametrize("writer", sorted(WRITERS))
@given(calls=CALLS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_cut_calls_that_vllm_takes_for_whole_ones_have_a_status(
    writer: str, vllm: Ask, calls: Any
) -> None:
    """vLLM closes what is open, or drops it. Ours are a beginning of the calls, and a status."""
    assume(fits(writer, calls))
    text, tools = WRITERS[writer](calls), schemas(calls)
    for end in range(0, len(text), max(1, len(text) // 20)):
        _, ours = read(text[:end], writer.removesuffix("_v11"), tools)
        ok = [call for call in ours if call.status == "ok"]
        assert [(call.name, call.arguments) for call in ok] == calls[: len(ok)]
        theirs = vllm(writer, text[:end], tools)["calls"]
        assert len(theirs) >= len(ok) or not theirs
