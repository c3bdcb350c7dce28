"""Other settings predicted from an asynchronous run: contexts are computed again after each swap of
weights, and short and long steps alternate."""

import asyncio
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_calibration import DAPO, H200, lowered

from forgedsl.runs.data import Span
from forgedsl.sim import calibrate
from forgedsl.sim.assume import assume
from forgedsl.sim.estimate import from_plan
from forgedsl_runtime.endpoints import SyncResult
from forgedsl_runtime.sim import simulation
from forgedsl_runtime.sim.endpoints import SimEndpoints, prompt_tokens
from forgedsl_runtime.sim.simulation import simulate

STEPS, PROMPT = 12, 256
TEXT = DAPO.replace("colocate = [trainer, generator]\n", "").replace(
    "schedule sync { steps = 8 }", "schedule async { steps = 12, max_policy_age = 1 }"
)
KEEPS = TEXT.replace("sync trainer -> generator", "sync trainer -> generator { on_swap = keep }")
CASES = {
    "the same": (TEXT, 1024),
    "512 tokens": (TEXT, 512),
    "32 prompts": (TEXT.replace("draw(16)", "draw(32)"), 1024),
    "groups of 4": (TEXT.replace("n = 8", "n = 4"), 1024),
    "old keys kept": (KEEPS, 1024),
    "age 2, old keys kept": (KEEPS.replace("max_policy_age = 1", "max_policy_age = 2"), 1024),
    "1.7B": (TEXT.replace("0.6B", "1.7B"), 1024),
}
WAYS = {
    "as planned": (1.07, 1.07, 1.07),
    "more for each sequence and context": (1.0, 1.15, 1.3),
    "more for each step": (1.3, 1.05, 1.0),
}
"""real times over planned ones: of a decode step, of a sequence in it, of a context computed
again"""


class Recorded(SimEndpoints):
    """Simulated services that keep spans of what they do."""

    spans: dict[str, list[Span]]

    async def _timed(self, kind, work, **fields):
        loop = asyncio.get_running_loop()
        start = loop.time()
        found = await work
        self.spans[kind].append(Span(kind=kind, start=start, end=loop.time(), fields=fields))
        return found

    async def _complete(self, service, prompt, group, sibling, env):
        fields = {"service": service, "group": group}
        made = await self._timed(
            "sample", super()._complete(service, prompt, group, sibling, env), **fields
        )
        span = self.spans["sample"][-1]
        tokens = made.length - round(prompt_tokens(self._latencies, service, self._seed, group))
        span.fields.update(tokens=tokens, engine_start=span.start, engine_end=span.end)
        return made

    async def step(self, node, batch):
        found = await self._timed("step", super().step(node, batch), service=node.target)
        self.spans["step"][-1].fields.update(tokens=found.tokens)
        return found

    async def sync(self, node, version):
        """The span of a real sync ends when the weights are loaded. The contexts that run then are
        computed again after it."""
        start = asyncio.get_running_loop().time()
        await self.titans[node.target].work(self._latencies.titans[node.target].publish)
        loaded = asyncio.get_running_loop().time() + self._latencies.engines[node.to].load
        await self.fleets[node.to].load(version)
        fields = {"service": node.target, "to": node.to}
        self.spans["sync"].append(Span(kind="sync", start=start, end=loaded, fields=fields))
        return SyncResult(bytes=0, transport="none", seconds=0.0)


def run_of(job, latencies):
    """A simulation, as a run that was read."""
    spans = {kind: [] for kind in ("sample", "step", "sync", "score", "logprobs", "eval")}

    class Kept(Recorded):
        pass

    Kept.spans = spans
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "SimEndpoints", Kept)
        result = simulate(job, latencies, steps=STEPS)
    length = statistics.fmean(span.fields["tokens"] for span in spans["sample"])
    count = next(node.n for node in job.nodes if node.n) * job.schedule.prompts
    rows = [
        {"step_s": step.seconds, "tokens": step.tokens, "sequences": count,
         "groups": job.schedule.prompts, "response_tokens_mean": length}
        for step in result.steps
    ]  # fmt: skip
    return SimpleNamespace(job=job, rows=rows, spans=spans, ready=(), drops={}, rehearsal=False)


def mean(job, latencies):
    return statistics.fmean(s.seconds for s in simulate(job, latencies, steps=STEPS).steps[2:])


def planned(text, new):
    made = lowered(text, f"generator.sampling.max_tokens={new}", host=replace(H200, gpus=2))
    assumed = (f"generator.tokens={new}", f"generator.prompt={PROMPT}")
    return assume(from_plan(made.job, made.graph, made.plan), assumed), made.job


def in_truth(latencies, way):
    """Latencies that differ from the plan's."""
    step, sequence, again = WAYS[way]
    engine, titan = latencies.engines["generator"], latencies.titans["trainer"]
    engine = replace(
        engine, decode=step * engine.decode, decode_sequence=sequence * engine.decode_sequence,
        decode_context=sequence * engine.decode_context, again=again * engine.again,
        prefill=again * engine.prefill,
    )  # fmt: skip
    titan = replace(titan, step=1.07 * titan.step, token=1.07 * titan.token)
    return replace(latencies, engines={"generator": engine}, titans={"trainer": titan})


@pytest.fixture(scope="module")
def cases():
    return {name: planned(*case) for name, case in CASES.items()}


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("as planned", marks=pytest.mark.full),
        pytest.param("more for each step", marks=pytest.mark.full),
        "more for each sequence and context",
    ],
)
def test_other_settings_are_predicted(way, cases):
    expected, job = cases["the same"]
    assert expected.engines["generator"].again > 0
    run = run_of(job, in_truth(expected, way))
    for name, (latencies, other) in cases.items():
        found = calibrate.calibrated_on(latencies, other, run, Path("run"), simulate, ran=expected)
        took = mean(other, in_truth(latencies, way))
        bound = 0.01 if name == "the same" else 0.03
        assert mean(other, found) == pytest.approx(took, rel=bound), name


def test_a_run_that_keeps_old_keys_predicts_one_that_does_not(cases):
    expected, job = cases["old keys kept"]
    assert expected.engines["generator"].again == 0
    run = run_of(job, in_truth(expected, "as planned"))
    latencies, other = cases["the same"]
    found = calibrate.calibrated_on(latencies, other, run, Path("run"), simulate, ran=expected)
    assert mean(other, found) == pytest.approx(mean(other, in_truth(latencies, "as planned")), 0.05)


def test_a_synchronous_run_predicts_an_asynchronous_one():
    """Nothing runs at its swaps, so it does not show what computing contexts again takes."""
    expected, job = planned(
        TEXT.replace("async { steps = 12, max_policy_age = 1", "sync { steps = 12"), 1024
    )
    run = run_of(job, in_truth(expected, "as planned"))
    latencies, other = planned(*CASES["the same"])
    found = calibrate.calibrated_on(latencies, other, run, Path("run"), simulate, ran=expected)
    assert found.engines["generator"].again > latencies.engines["generator"].again
    assert mean(other, found) == pytest.approx(mean(other, in_truth(latencies, "as planned")), 0.05)


def test_swaps_of_other_engines_do_not_count(cases):
    expected, job = cases["the same"]
    run = run_of(job, in_truth(expected, "as planned"))
    alone = calibrate.calibrated_on(expected, job, run, Path("run"), simulate)
    others = [replace(s, fields={"to": "other", "service": "another"}) for s in run.spans["sync"]]
    run.spans["sync"] += [replace(s, start=s.start - 0.7, end=s.end - 0.7) for s in others]
    assert calibrate.calibrated_on(expected, job, run, Path("run"), simulate) == alone


def test_completions_of_other_services_on_the_engine_are_neighbours(cases):
    expected, job = cases["the same"]
    run = run_of(job, in_truth(expected, "as planned"))
    engine, syncs = expected.engines["generator"], calibrate._syncs(run, to="generator")
    rows, values = calibrate._observed(engine, "generator", run, syncs, PROMPT)
    spans = run.spans["sample"]
    for span in spans[1::2]:
        span.fields["service"] = "judge"
    samplers = {"judge": SimpleNamespace(served_by="generator"), **job.samplers}
    run.job = SimpleNamespace(services=job.services, samplers=samplers)
    for name in ("generator", "judge"):
        own, times = calibrate._observed(engine, name, run, syncs, PROMPT)
        assert 0 < len(own) < len(rows)
        assert _rounded(own, times) <= _rounded(rows, values)


def _rounded(rows, values):
    return {
        tuple(round(number, 6) for number in (*row, value))
        for row, value in zip(rows, values, strict=True)
    }


def test_completions_beside_unknown_ones_are_left_out():
    """At the end of a run, at 100 s, some that take 10 s were running. One takes longer than all
    others: it says nothing of them."""
    usual = [(float(i), i + 10.0) for i in range(91)]
    spans = [
        Span(kind="sample", start=start, end=end, fields={"engine_start": start, "engine_end": end})
        for start, end in [*usual, *[(5.0, 6.0)] * 9, (20.0, 85.0)]
    ]
    known = calibrate._with_known_neighbours(spans)
    assert max(span.end for span in known) == 90.0
    assert len(known) == len(spans) - 10 - 1
    assert calibrate._with_known_neighbours(spans[:1]) == spans[:1]  # better than nothing


def test_the_usual_step_is_that_of_a_cycle():
    alternating = [1.5, 5.9] * 5
    assert calibrate._usual(alternating, 4) == calibrate._usual(alternating[1:], 4) == 3.7
    assert calibrate._usual([1.0, 1.0, 9.0, 1.0, 1.0], 1) == 1.0
    assert calibrate._usual(alternating, 66) == 3.7  # a few steps of a run whose policy may be old
    assert calibrate._usual([2.0], 4) == 2.0
