"""The stand-in engine of a rehearsal: whose times its requests take."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from forgedsl.sim.engine import Batching
from forgedsl.sim.latency import Engine
from forgedsl.sim.values import constant
from forgedsl_runtime.actors.stub_engine import StubEngine, StubRequest

HOST = Engine(
    tokens=constant(8.0), prompt=constant(16.0), decode=0.01, decode_sequence=1e-4, prefill=1e-5,
    max_running=24, load=0.1, start=20.0, siblings=4,
)  # fmt: skip


def test_requests_of_a_tenant_take_its_times(monkeypatch):
    added, add = [], Batching.add

    def recording(self, now, entry, tokens, prefill, context):
        added.append((entry.request.id, entry.version, prefill, context))
        add(self, now, entry, tokens, prefill, context)

    monkeypatch.setattr(Batching, "add", recording)

    async def submit():
        ended = asyncio.Event()
        engine = StubEngine(HOST, lambda completions: ended.set())
        engine.version = 3
        tenant = replace(HOST, prefill=2e-5, siblings=2)
        common = {"prompt": 16, "tokens": 1, "truncated": False}
        engine.submit([
            StubRequest(id="host", **common),
            StubRequest(id="tenant", **common, tenant=tenant),
            StubRequest(id="later turn", **common, tenant=tenant, before=5),
        ])  # fmt: skip
        await ended.wait()

    asyncio.run(submit())
    assert added == [
        ("host", 3, 16 * 1e-5, 4), ("tenant", 0, 16 * 2e-5, 8), ("later turn", 0, 0.0, 13)
    ]  # fmt: skip
