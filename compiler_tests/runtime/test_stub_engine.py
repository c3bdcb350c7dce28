"""The stand-in engine of a rehearsal: whose times its requests take, on virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from forgedsl.sim.latency import Engine
from forgedsl.sim.values import constant
from forgedsl_runtime.actors.stub_engine import StubEngine, StubRequest
from forgedsl_runtime.sim.clock import run

HOST = Engine(
    tokens=constant(8.0), prompt=constant(16.0), decode=0.01, decode_sequence=1e-4, prefill=1e-3,
    max_running=24, load=0.1, start=20.0, decode_context=2e-6, context=12.0, siblings=4,
)  # fmt: skip
TENANT = replace(HOST, prefill=2e-3, siblings=2)


def alone(engine_times: Engine, tenant: Engine | None, before: int = 0) -> tuple[float, int]:
    """Seconds that a request of 16 + 8 tokens takes on an engine, and the version it sampled."""

    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        engine = StubEngine(engine_times, ended.set_result)
        engine.version = 3
        begin = loop.time()
        engine.submit([
            StubRequest(id="a", prompt=16, tokens=8, truncated=False, tenant=tenant, before=before)
        ])  # fmt: skip
        (done,) = await ended
        return loop.time() - begin, done.version_max

    found: tuple[float, int] = run(main())
    return found


@pytest.mark.parametrize("before", [0, 5])
def test_a_request_of_a_tenant_takes_its_times(before):
    seconds, version = alone(HOST, TENANT, before)
    assert seconds == pytest.approx(alone(TENANT, None, before)[0])
    assert seconds > alone(HOST, None, before)[0] + 1e-5
    assert version == 0
    assert alone(HOST, None, before)[1] == 3
