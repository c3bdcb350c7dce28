"""Latencies measured in a run, to replace the plan's estimates.

    RUN/{job.json, events.jsonl, metrics.jsonl} --measure--> Latencies --settle--> Latencies

Completions give lengths and the speed of engines (decode, cost of a running sequence, prefill).
If all run together, they do not show these parts apart: then the plan's proportions count.
Steps give the trainer's times. Other spans give those of rewards, data and the controller.
Effects without spans are fitted last: a factor on all times and the spread of steps are set so that
a simulation of the run has its median and mean step time. Then other settings can be predicted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import counted
from forgedsl.lower.job import Job
from forgedsl.records import replace
from forgedsl.runs.checkpoints import no_run
from forgedsl.runs.data import RunData, Span, load_run
from forgedsl.sim.decoding import DecodeCost, Decoding, Swaps
from forgedsl.sim.fit import Interval, least_squares, multiples, overlap, union
from forgedsl.sim.latency import Control, Data, Engine, Filter, Latencies, Play, Reward, Titan
from forgedsl.sim.result import Result
from forgedsl.sim.scaling import ESTIMATE, expected, scaled
from forgedsl.sim.values import Dist, constant, quantiles
from forgedsl.types.flow import Role

FIRST = 3
"""initial steps to ignore: compilation, empty queues"""
MOST = 20_000
"""maximum number of completions for the fit"""
SETTLING = 64
"""number of steps to simulate for the final fit"""
PUBLISH = 0.5
"""fraction of a weight transfer in which the trainer is busy; the engines are in the rest"""
SPREAD = 1.5
"""minimum ratio of largest to smallest batch to separate fixed from proportional times"""
USUAL = 0.99
"""fraction of completions that are not much longer than the others"""
PLAN_WEIGHT = 1e-2
"""how much a fit is drawn to the plan's proportions: a second that moves from one part of a decode
step to another counts as 10 % (the root of this) of a second by which the fit is off"""


class CalibrationError(Exception):
    """A run without usable timings; the message says why."""


def usable_run(folder: Path) -> RunData:
    """Read a run with usable timings. Raises CalibrationError."""
    try:
        data = load_run(folder)
    except FileNotFoundError as error:
        raise CalibrationError(no_run(folder)) from error
    if data.rehearsal:
        raise CalibrationError(f"{folder} is a rehearsal: its times are not measured")
    if len(data.rows) < 4 * FIRST:
        raise CalibrationError(
            f"{folder} has {counted(len(data.rows), 'step')}: a calibration needs at least "
            f"{4 * FIRST}"
        )
    return data


def calibrated(
    latencies: Latencies, job: Job, folder: Path, simulate: Callable[..., Result]
) -> Latencies:
    """Return `latencies` of `job`, with all values that the run in `folder` shows. They are scaled
    if the plan expects other times of the job's models and placement than of the run's."""
    data = usable_run(folder)
    try:
        ran = expected(latencies, folder)
    except ValueError as error:
        raise CalibrationError(f"{folder / ESTIMATE} is not JSON: {error}") from error
    return calibrated_on(latencies, job, data, folder, simulate, ran)


def calibrated_on(
    latencies: Latencies,
    job: Job,
    data: RunData,
    folder: Path,
    simulate: Callable[..., Result],
    ran: Latencies | None = None,
) -> Latencies:
    """The same for a run that was read; errors name its `folder`. `ran` are the latencies that the
    run's own plan expected."""
    missing = [name for name in job.services if name not in data.job.services]
    if missing:
        raise CalibrationError(f"{folder} has no service `{missing[0]}`")
    ran = ran or latencies
    fitted = _fit_step_times(_measured(ran, job, data), data, folder, simulate)
    return _limited(scaled(fitted, ran, latencies), job, data)


def _measured(latencies: Latencies, job: Job, data: RunData) -> Latencies:
    return replace(
        latencies,
        engines={
            name: _engine(engine, name, data, _syncs(data, to=name))
            for name, engine in latencies.engines.items()
        },
        titans={
            name: _titan(titan, name, data, _syncs(data, service=name))
            for name, titan in latencies.titans.items()
        },
        rewards={name: _reward(r, name, data) for name, r in latencies.rewards.items()},
        filters={name: _filter(f, name, data) for name, f in latencies.filters.items()},
        data={name: _data(d, name, job, data) for name, d in latencies.data.items()},
        environments={  # steps of environments are included in the measured completions
            name: Play(turns=constant(1.0), step=constant(0.0)) for name in latencies.environments
        },
        control=_control(data),
        notes=(),
    )


def _control(data: RunData) -> Control:
    """Return the controller's time between the end of a completion and its processing."""
    mine = [s for s in after_start(data, "sample") if "engine_end" in s.fields]
    spans = [(span.fields["engine_end"], span.end) for span in mine]
    return Control(rollout=union(spans) / len(spans) if spans else 0.0)


def after_start(data: RunData, kind: str, *, skipped: int = FIRST) -> list[Span]:
    """Return finished spans of a kind, without those of the first steps."""
    steps = sorted(data.spans["step"], key=lambda span: span.end)
    begin = steps[skipped].start if skipped else -math.inf
    return [s for s in data.spans[kind] if s.start >= begin and "error" not in s.fields]


def _syncs(data: RunData, **wanted: str) -> list[Interval]:
    """Return the syncs of a trainer (`service`), or those to an engine (`to`)."""
    return sorted(
        (span.start, span.end)
        for span in after_start(data, "sync")
        if all(span.fields.get(key) == value for key, value in wanted.items())
    )


def _samples_of(data: RunData, name: str, *, skipped: int = FIRST) -> list[Span]:
    """Return the completions of a service, without those of the first steps."""
    spans = after_start(data, "sample", skipped=skipped)
    return [span for span in spans if span.fields.get("service") == name]


def _prompt_tokens(data: RunData) -> float:
    rows = [row for row in data.rows[FIRST:] if row.get("response_tokens_mean") is not None]
    if not rows:
        return 1.0
    return max(
        1.0,
        statistics.fmean(r["tokens"] / r["sequences"] - r["response_tokens_mean"] for r in rows),
    )


def _engine(engine: Engine, name: str, data: RunData, syncs: list[Interval]) -> Engine:
    mine = _samples_of(data, name)
    if not mine:
        return engine
    lengths = [s for s in mine if "group" in s.fields]
    prompt = _prompt_tokens(data)
    tokens = quantiles([s.fields["tokens"] for s in lengths or mine])
    planned = engine.with_lengths(tokens=tokens, prompt=constant(prompt))
    rows, values = _observed(planned, name, data, syncs, prompt)
    parts = (planned.decode, 1.0, planned.prefill * prompt, planned.again)
    decode, sequence, prefill, again = multiples(rows, values, parts, weight=PLAN_WEIGHT)
    if not any(recomputed for *_, recomputed in rows):  # nothing ran at a swap
        again = decode
    ready = [p for p in data.ready if p["service"] == name]
    return replace(
        planned,
        decode=max(decode * planned.decode, 1e-6),
        decode_sequence=sequence * planned.decode_sequence,
        decode_context=sequence * planned.decode_context,
        prefill=prefill * planned.prefill,
        load=(1 - PUBLISH) * statistics.median(e - s for s, e in syncs) if syncs else engine.load,
        start=max((p["seconds"] for p in ready), default=0.0) + 10.0,
        like=_intraclass_correlation(lengths),
        again=again * planned.again,
    )


def _observed(
    planned: Engine, name: str, data: RunData, syncs: list[Interval], prompt: float
) -> tuple[list[tuple[float, ...]], list[float]]:
    """Return what each completion had to wait for, and the seconds that it took: decode steps,
    planned seconds that sequences and contexts add to them, prompts that were computed, tokens of
    contexts that were computed again."""
    hosts = {n: each.served_by or n for n, each in data.job.samplers.items()}
    replicas = data.job.services[hosts[name]].mesh.replicas
    every = [
        (*_in_engine(span), span.fields["tokens"])
        for each, host in hosts.items()
        if host == hosts[name]
        for span in _samples_of(data, each, skipped=0)
    ]
    cost = DecodeCost(
        step=planned.decode, sequence=planned.decode_empty / replicas,
        context=planned.decode_context / replicas,
    )  # fmt: skip
    decoding = Decoding(every, cost, prompt / planned.siblings)
    swaps = Swaps(sorted(end for _, end in syncs) if planned.again else [], every, decoding)
    rows: list[tuple[float, ...]] = []
    values: list[float] = []
    for span in _with_known_neighbours(_samples_of(data, name))[:MOST]:
        (start, end), tokens = _in_engine(span), span.fields["tokens"]
        prompts, recomputed = swaps.within(start, end)
        begun = (decoding.begun(start, end) + prompts) / replicas
        rows.append((tokens, tokens * decoding.shared(start, end), begun, recomputed / replicas))
        values.append(end - start - (1 - PUBLISH) * overlap((start, end), syncs))
    return rows, values


def _in_engine(span: Span) -> Interval:
    """Return when a completion began to run in its engine, and when it ended there."""
    return span.fields["engine_start"], span.fields["engine_end"]


def _with_known_neighbours(spans: Sequence[Span]) -> Sequence[Span]:
    """Return the completions whose neighbours are all in the run. It does not have those that were
    running at its end. They began at most so long before it as completions take; a few that take
    much longer are left out."""
    times = [_in_engine(span) for span in spans]
    took = sorted(end - start for start, end in times)
    longest = took[math.ceil(USUAL * len(took)) - 1]
    until = max(end for _, end in times) - longest
    known = [
        span
        for span, (start, end) in zip(spans, times, strict=True)
        if end <= until and end - start <= longest
    ]
    return known or spans


def _intraclass_correlation(spans: Sequence[Span]) -> float:
    """Return the fraction of the variance of lengths that is between groups."""
    groups: dict[int, list[float]] = {}
    for span in spans:
        groups.setdefault(span.fields["group"], []).append(span.fields["tokens"])
    several = [lengths for lengths in groups.values() if len(lengths) > 1]
    total = statistics.pvariance([n for lengths in several for n in lengths]) if several else 0.0
    if not total:
        return 0.0
    within = statistics.fmean(statistics.variance(lengths) for lengths in several)
    return min(1.0, max(0.0, 1 - within / total))


def _titan(titan: Titan, name: str, data: RunData, syncs: list[Interval]) -> Titan:
    steps = [s for s in after_start(data, "step") if s.fields.get("service") == name]
    scored = [s for s in after_start(data, "logprobs") if s.fields.get("service") == name]
    if scored:
        tokens = sum(row["tokens"] for row in data.rows[FIRST:])
        busy = union([(span.start, span.end) for span in scored])
        titan = replace(titan, logprobs=0.0, logprobs_token=busy / tokens)
    if not steps:
        return titan
    publish = PUBLISH * statistics.median(e - s for s, e in syncs) if syncs else 0.0
    waits = [(start, start + PUBLISH * (end - start)) for start, end in syncs]
    sizes = [float(span.fields["tokens"]) for span in steps]
    times = [s.end - s.start - overlap((s.start, s.end), waits) for s in steps]
    if max(sizes) > SPREAD * min(sizes):
        fixed, token = least_squares([(1.0, size) for size in sizes], times)
    else:
        mean, size = statistics.median(times), statistics.fmean(sizes)
        share = titan.step / (titan.step + titan.token * size)
        fixed, token = share * mean, (1 - share) * mean / size
    spread = [t / (fixed + token * size) for t, size in zip(times, sizes, strict=True)]
    return replace(
        titan, step=fixed, token=token, publish=publish, save=0.0, spread=quantiles(spread)
    )


def _reward(reward: Reward, name: str, data: RunData) -> Reward:
    """Estimate a reward: a share of the time in which scores were being computed."""
    seconds = seconds_of_call(data, name)
    return reward if seconds is None else Reward(seconds=constant(seconds))


def seconds_of_call(data: RunData, name: str) -> float | None:
    """Return the mean seconds of a call of a reward after the start of a run: its share of the time
    in which scores from it were being computed. None without such a score."""
    behind = {rubric: spec.rewards for rubric, spec in data.job.rubrics.items()}
    targets = {n.name: n.target for n in data.job.nodes if Role.SCORES in n.roles}
    scores = [
        span
        for span in after_start(data, "score")
        for target in (targets[span.fields["node"]],)
        if name in behind.get(target, (target,))
    ]
    if not scores:
        return None
    rewards = len(behind.get(targets[scores[0].fields["node"]], (name,)))
    procs = data.job.rewards[name].concurrent_calls
    busy = union([(span.start, span.end) for span in scores])
    return busy * procs / len(scores) / rewards


def _filter(known: Filter, name: str, data: RunData) -> Filter:
    dropped = data.drops.get(f"filter {name}", 0)
    kept = sum(row["groups"] for row in data.rows)
    return Filter(keep=kept / (kept + dropped)) if kept else known


def _data(known: Data, name: str, job: Job, data: RunData) -> Data:
    """Return the number of rows of an evaluation. A run does not show that of a training set."""
    evals = [key for key, spec in job.evals.items() if spec.dataset == name]
    counts = [s.fields["prompts"] for s in data.spans["eval"] if s.fields["name"] in evals]
    return Data(rows=max(counts)) if counts else known


def _limited(latencies: Latencies, job: Job, data: RunData) -> Latencies:
    """Return completion lengths as in the run, capped by the job's limit. If the run truncated
    some, those that reached its limit may be longer in the job."""
    engines, notes = {}, []
    for name, engine in latencies.engines.items():
        engines[name] = engine
        if not engine.tokens.points:  # the run has no completions of it
            continue
        most, cut = (float(_limit(each, name)) for each in (job, data.job))
        points = tuple(min(point, most) for point in engine.tokens.points)
        engines[name] = engine.with_lengths(tokens=Dist(points=points), prompt=engine.prompt)
        truncated, reached = _at_limit(data, name, cut)
        stretched = round(reached * len(points))
        if most > cut and stretched and round(truncated * len(points)):
            notes.append(
                f"lengths of {name} above {cut:g} tokens are unknown: {reached:.0%} of the run's "
                "completions reached this limit"
            )
            if most < math.inf:
                longest = (*points[:-stretched], *[most] * stretched)
                engines[name] = replace(engines[name], longest=Dist(points=longest))
    return replace(latencies, engines=engines, notes=(*latencies.notes, *notes))


def _at_limit(data: RunData, name: str, limit: float) -> tuple[float, float]:
    """Return the share of a service's completions that the run truncated, and the share of those
    that reached the limit: a policy learns to end just there."""
    mine = _samples_of(data, name)
    truncated = sum(bool(span.fields.get("truncated")) for span in mine)
    reached = sum(span.fields["tokens"] >= limit for span in mine)
    return truncated / max(1, len(mine)), reached / max(1, len(mine))


def _limit(job: Job, name: str) -> float:
    """Return the maximum completion tokens of a service. A trajectory has several completions, and
    no limit here."""
    service = job.samplers.get(name)
    limit = None if service is None else service.sampling.max_tokens
    plays = any(node.target == name and node.env is not None for node in job.nodes)
    return math.inf if limit is None or plays else limit


# ---- effects without spans


def _fit_step_times(
    measured: Latencies, data: RunData, folder: Path, simulate: Callable[..., Result]
) -> Latencies:
    """Fit a factor on all times and the spread of steps, so that a simulation of the run has its
    usual and mean step time. (A slow step delays other work, but not by its whole excess.)"""
    took = [row["step_s"] for row in data.rows[FIRST:]]
    cycle = _cycle(data.job)
    goal = _usual(took, cycle)
    steps = min(SETTLING, data.job.schedule.steps or SETTLING)

    def simulated(part: float) -> tuple[float, float]:
        """Return the usual step time, and the ratio of the mean to it."""
        found = simulate(data.job, _spread(measured, part), steps=steps).settled
        times = [step.seconds for step in found]
        usual = _usual(times, cycle)
        return usual, statistics.fmean(times) / usual

    (plain, least), (_, most) = simulated(0.0), simulated(1.0)
    mean_ratio = statistics.fmean(took) / goal
    part = min(1.0, max(0.0, (mean_ratio - least) / (most - least))) if most > least else 0.0
    source = f"the run {folder.name} ({goal:.3g} s a step; {plain:.3g} s by its spans alone)"
    settled = _scaled(_spread(measured, part), goal / (simulated(part)[0] if part else plain))
    return replace(settled, source=source)


def _cycle(job: Job) -> int:
    """Return over how many steps a mean is taken. Where training and sampling overlap, batches
    begin together, so short and long steps alternate; the period depends on the largest age."""
    return 2 * (job.schedule.age_bound + 1) if job.schedule.mode == "async" else 1


def _usual(times: Sequence[float], cycle: int) -> float:
    """Return the median, over the run, of the mean of `cycle` steps, or of half of its steps if it
    is short."""
    cycle = max(1, min(cycle, len(times) // 2))
    return statistics.median(
        statistics.fmean(times[i : i + cycle]) for i in range(len(times) - cycle + 1)
    )


def _spread(latencies: Latencies, part: float) -> Latencies:
    """Scale the spread of steps around its median."""

    def less(dist: Dist) -> Dist:
        usual = dist.at(0.5)
        return Dist(points=tuple(usual + part * (point - usual) for point in dist.points))

    found = {n: replace(titan, spread=less(titan.spread)) for n, titan in latencies.titans.items()}
    return replace(latencies, titans=found)


def _scaled(latencies: Latencies, factor: float) -> Latencies:
    """Multiply all times by a factor."""

    def times(record: Any, *names: str) -> Any:
        return replace(record, **{name: factor * getattr(record, name) for name in names})

    engine = ("decode", "decode_sequence", "decode_context", "prefill", "load", "again")
    titan = ("step", "token", "logprobs", "logprobs_token", "publish")
    rewards: Mapping[str, Reward] = {
        name: Reward(seconds=constant(factor * reward.seconds.mean))
        for name, reward in latencies.rewards.items()
    }
    return replace(
        latencies,
        engines={name: times(e, *engine) for name, e in latencies.engines.items()},
        titans={name: times(t, *titan) for name, t in latencies.titans.items()},
        rewards=rewards,
        control=times(latencies.control, "rollout"),
    )
