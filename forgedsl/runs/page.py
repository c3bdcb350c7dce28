"""Composes the report: figures, charts and tables of the page, and their order.

    RunData --> context of templates/report.html.j2 --> HTML text

A chart whose field is null in every row (rewards in supervised training) is not drawn.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from forgedsl.diagnostics import counted
from forgedsl.records import replace
from forgedsl.runs import proofs, usage
from forgedsl.runs.charts import TALL, WIDE, Chart, Series, chart
from forgedsl.runs.data import RunData, overlap, start_ups
from forgedsl.runs.settings import written_path
from forgedsl.runs.syncs import RATE, receivers
from forgedsl.runs.text import clock, duration, number
from forgedsl.runs.timeline import timeline
from forgedsl.runs.topology import topology_svg
from forgedsl.runs.verdict import EDGE, edge_size, edges, evals, is_loss, points, verdict
from forgedsl.shipped import SHIPPED

BARE: dict[str, Any] = {
    "target": None,
    "parts": {},
    "siblings": [],
    "tokens": None,
    "truncated": False,
    "answers": [],
    "rows": 1,
    "ended": "",
}
"""defaults for fields that a sample does not have"""
CARDS = 6
"""number of completions shown per step"""
SEARCHED = 1000
"""number of the last completions that the page can search"""

CHARTS: tuple[tuple[str, str, tuple[str, ...], float | None], ...] = (
    (
        "Signal", "fraction of groups whose answers all have one score, and of truncated answers",
        ("dead_group_fraction", "truncated_fraction"), 0.0,
    ),
    ("Answer length", "tokens", ("response_tokens_mean",), 0.0),
    ("Loss", "", ("loss",), None),
    ("Entropy", "nats per token", ("entropy",), 0.0),
    ("Gradient norm", "before clipping", ("grad_norm",), 0.0),
    ("Policy age", "in policy versions", ("age_mean", "age_max"), 0.0),
    ("Throughput", "trained tokens per second", ("tokens_per_s",), 0.0),
    (
        "Step time", "seconds per step, and idle seconds",
        ("step_s", "trainer_idle_s", "sampler_idle_s"), 0.0,
    ),
    ("Learning rate", "", ("lr",), 0.0),
)  # fmt: skip
"""(title, note, fields, floor of the y axis)"""
UNITS = {
    "Signal": "fraction", "Answer length": "tokens", "Entropy": "nats", "Gradient norm": "norm",
    "Policy age": "versions", "Throughput": "tokens/s", "Step time": "seconds",
}  # fmt: skip
"""units of y axes, if not obvious from the title"""


def series(data: RunData, fields: tuple[str, ...]) -> list[Series]:
    """Return the curves of fields; those of a second run have the same colours."""
    found = [(field, points(data, field)) for field in fields]
    mine = [
        Series(name=field, points=pts, color=f"c{i + 1}", exact=field == "age_max")
        for i, (field, pts) in enumerate((f, p) for f, p in found if p)
    ]
    return mine + beside(data, mine)


def beside(data: RunData, mine: list[Series]) -> list[Series]:
    """Return the same curves of the second run."""
    if data.beside is None:
        return []
    return [
        replace(one, points=pts, spread=(), other=data.beside.folder)
        for one in mine
        if (pts := points(data.beside, one.name))
    ]


def hero(data: RunData, size: tuple[int, int]) -> Chart | None:
    """Return the main chart: reward with its spread, and the held-out evals."""
    reward = points(data, "reward_mean")
    if not reward:
        loss = series(data, ("loss",))
        return chart("Loss", loss, size=size) if loss else None
    std = dict(points(data, "reward_std"))
    main = Series(
        name="reward", points=reward, spread=tuple(std.get(int(x), 0.0) for x, _ in reward)
    )
    marks = [
        Series(name=name, points=pts, color=f"c{i + 2}", dots=True)
        for i, (name, pts) in enumerate(evals(data).items())
        if not is_loss(data, name)
    ]
    if data.beside is not None and (pts := points(data.beside, "reward_mean")):
        marks.append(Series(name="reward", points=pts, other=data.beside.folder))
    note = "mean over the step's completions, band: one standard deviation"
    if any(mark.dots for mark in marks):
        note += "; dots: held-out evals"
    return chart("Reward", [main, *marks], size=size, note=note, floor=0.0, ceil=1.0)


def grid(data: RunData) -> list[Chart]:
    """Return the smaller charts: evals, rewards, general metrics, and reports of the loss."""
    made = [
        chart(name, eval_series(data, name, pts), note="held-out eval", unit="value")
        for name, pts in evals(data).items()
    ]
    made += each(data, "reward/", "mean over its answers", "reward")
    for title, note, fields, floor in CHARTS:
        found = series(data, fields)
        flat = len({y for s in found for _, y in s.points}) == 1
        if found and not (flat and title in ("Learning rate", "Signal")):
            made.append(chart(title, found, note=note, floor=floor, unit=UNITS.get(title, "")))
    made += each(data, "failed/", "failed scores per step", "failed", "scores")
    made += each(data, "retried/", "retried calls per step", "retried", "calls")
    made += each(
        data,
        "requests_again/",
        "retried requests to an endpoint per step",
        "requests again",
        "requests",
    )
    made += each(
        data,
        "requests_slow/",
        "requests per step that took over half of their timeout",
        "slow requests",
        "requests",
    )
    made += each(
        data,
        "requests_failed/",
        "requests per step without a usable answer",
        "failed requests",
        "requests",
    )
    for name in receivers(data.rows):
        pts = tuple((x, y / 1e6) for x, y in points(data, RATE + name))
        one, note = Series(name=RATE + name, points=pts), "rate of weight transfer, MB per second"
        made.append(chart(f"sync {name}", [one], note=note, floor=0.0, unit="MB/s"))
    made += usage_charts(data)
    return (
        made
        + each(data, "reward_s/", "longest call per step, seconds", "time of", "seconds")
        + each(data, "loss/", "reported by the loss")
    )


def eval_series(data: RunData, name: str, pts: tuple[tuple[float, float], ...]) -> list[Series]:
    """Return the curves of an eval, also of the second run."""
    found = [Series(name=name, points=pts, color="c2", dots=True)]
    theirs = evals(data.beside).get(name) if data.beside is not None else None
    if data.beside is not None and theirs:
        found.append(replace(found[0], points=theirs, other=data.beside.folder))
    return found


def usage_charts(data: RunData) -> list[Chart]:
    """Return charts of the memory of services, and of memory and load of GPUs, over the steps."""
    rows = (
        (
            "Memory",
            "memory of the processes of each service on the first host, GiB",
            "GiB",
            usage.memory,
        ),
        ("GPU memory", "memory of the first host, GiB", "GiB", usage.gpu_memory),
        ("GPU load", "fraction of time in which a kernel ran", "fraction", usage.gpu_load),
    )
    found = []
    for title, note, unit, read in rows:
        curves = [
            Series(name=name, points=pts, color=f"c{i % 6 + 1}", exact=True)
            for i, (name, pts) in enumerate(read(data).items())
        ]
        if curves:
            found.append(chart(title, curves, note=note, floor=0.0, unit=unit))
    return found


def each(data: RunData, prefix: str, note: str, lead: str = "", unit: str = "") -> list[Chart]:
    """Return a chart for every field whose name has this prefix at its start or after a `/`.
    `lead` is a prefix of the title."""
    fields = sorted({key for row in data.rows for key in row if f"/{prefix}" in f"/{key}"})
    found = [(field, series(data, (field,))) for field in fields]
    titles = [f"{lead} {field.replace(prefix, '')}".strip() for field, _ in found]
    return [
        chart(title, one, note=note, unit=unit or lead)
        for title, (_, one) in zip(titles, found, strict=True)
        if one
    ]


def tiles(data: RunData) -> list[dict[str, str]]:
    """Return the headline figures."""
    shown: list[dict[str, str]] = []
    reward = points(data, "reward_mean")
    pair = edges(reward)
    if pair:
        title = f"mean of the first and of the last {counted(edge_size(reward), 'step')}"
        shown.append(change("Reward", *pair, title=title))
    for name, pts in evals(data).items():
        if len(pts) > 1:
            title = f"held-out data, at step {pts[0][0]:.0f} and {pts[-1][0]:.0f}"
            shown.append(change(name, pts[0][1], pts[-1][1], title=title))
    pair = None if shown else edges(points(data, "loss"))
    if pair:
        shown.append(change("Loss", *pair, title=f"mean of the first and of the last {EDGE} steps"))
    wanted = None if data.is_session else data.job.schedule.steps
    steps = f"of {wanted}" if wanted else ""
    done = data.rows[-1]["step"] if data.rows else 0
    shown.append({"label": "Steps", "value": number(done), "note": steps})
    shown.append({"label": "Time", "value": clock(data.seconds), "note": startup(data)})
    timed = [row for row in data.rows[1:] or data.rows if row.get("tokens_per_s") is not None]
    if seconds := sum(row["step_s"] for row in timed):
        rate = sum(row["tokens_per_s"] * row["step_s"] for row in timed) / seconds
        note = "trained" if len(data.rows) == 1 else "trained tokens, without the first step"
        shown.append({"label": "Tokens/s", "value": number(rate), "note": note})
    shared = overlap(data)
    if shared is not None:
        title = "steps during which a completion was sampled"
        tile = {"label": "Overlap", "value": f"{shared:.0%}", "note": "of the steps"}
        shown.append(tile | {"title": title})
    ages = [y for _, y in points(data, "age_max")]
    if ages:
        note = f"bound {data.job.schedule.age_bound}"
        tile = {"label": "Policy age", "value": f"\u2264 {max(ages):.0f}", "note": note}
        shown.append(tile | {"title": "versions between sampling and training"})
    return shown


def change(label: str, before: float, after: float, *, title: str) -> dict[str, str]:
    """Return a figure with its earlier value; `title` explains both."""
    return {
        "label": label,
        "value": number(after),
        "note": f"from {number(before)}",
        "title": title,
    }


def startup(data: RunData) -> str:
    found = start_ups(data)
    if not found:
        return ""
    begin, first = found[-1]
    which = f" (the last of {len(data.starts)} starts)" if len(data.starts) > 1 else ""
    return f"start-up {duration(first - begin)}{which}"


def completions(data: RunData) -> list[dict[str, Any]]:
    """Return completions from the beginning, middle and end of the run, over the range of
    scores."""
    steps = sorted({sample["step"] for sample in data.samples})
    if not steps:
        return []
    chosen = dict.fromkeys((steps[0], steps[len(steps) // 2], steps[-1]))
    return [{"step": step, "samples": spread(data.samples, step)} for step in chosen]


def spread(samples: tuple[dict[str, Any], ...], step: int) -> list[dict[str, Any]]:
    """Select CARDS completions of a step, evenly over their ranking (best first)."""
    mine = [BARE | sample for sample in samples if sample["step"] == step]
    count = min(CARDS, len(mine))
    return [mine[round(i * (len(mine) - 1) / max(count - 1, 1))] for i in range(count)]


def trajectory(sample: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Cut the text of a trajectory at its answers: (what came before, what the policy wrote,
    record of the answer), in order; see runtime/forgedsl_runtime/controller/trajectory_log.py."""
    text, ended, found = sample["response"], 0, []
    for answer in sample["answers"]:
        start, end = answer["at"]
        found.append((text[ended:start], text[start:end], answer))
        ended = end
    return found


def outcome(data: RunData) -> tuple[str, str]:
    """Return (style, text) for the state of the run."""
    if not data.outcome or data.running:
        return "open", "running" if data.running else "not finished"
    status = str(data.outcome.get("status", "done"))
    good = {"done": "finished", "ok": "finished", "interrupted": "interrupted"}
    style = "good" if good.get(status) == "finished" else "open" if status in good else "bad"
    return style, good.get(status, str(data.outcome.get("message", status)))


def services(data: RunData) -> list[dict[str, Any]]:
    """Return a row per service: its kind, model and placement."""
    rows = []
    for name, service in data.job.services.items():
        mesh = service.mesh
        count = mesh.hosts * mesh.procs
        size = f"{count} process{'es' if count > 1 else ''}"
        if mesh.replicas > 1:
            size = f"{mesh.replicas} replicas of {size}"
        if on := getattr(service, "served_by", None):
            size = f"served by {on}"
        rows.append(
            {
                "name": name, "kind": service.kind, "model": service.model, "size": size,
                "device": mesh.device, "dtype": service.dtype,
                "origin": data.job.origins.get(name, ""),
            }
        )  # fmt: skip
    return rows


def settings(data: RunData) -> list[tuple[str, str, bool]]:
    """Return (path, value, in force) of the run's settings, then its params."""
    job = data.job
    flat = [(name, model_text(model), True) for name, model in job.models.items()]
    flat += [(name, source_text(part.source), True) for name, part in job.datasets.items()]
    for name, service in job.services.items():
        for block in ("optimizer", "batch", "sampling", "parallel"):
            part = getattr(service, block, None)
            if part is not None:
                flat.append((f"{name}.{block}", fields_text(part), True))
    flat += [(name, fields_text(part, "sampling"), True) for name, part in job.evals.items()]
    flat += [("schedule", fields_text(job.schedule), True), ("seed", str(job.seed), True)]
    rest = job.model_dump_json(exclude={"params", "summary", "origins"})
    for name, value in job.params.items():
        used = not isinstance(value, str) or json.dumps(value)[1:-1] in rest
        flat.append((f"param {name}", value_text(value), used))
    return flat


def differing(data: RunData) -> list[tuple[str, str, str]]:
    """Return (path, value here, value there) of the settings that differ from the second run."""
    if data.beside is None:
        return []
    here, there = ({p: v for p, v, _ in settings(run)} for run in (data, data.beside))
    paths = [path for path in {**here, **there} if here.get(path) != there.get(path)]
    return [(path, here.get(path, "-"), there.get(path, "-")) for path in paths]


def model_text(model: Any, *, whole: bool = False) -> str:
    """`local(models/tiny_math), f32, context 256`; with `whole` as in `source_text`."""
    adapter = [f"adapter {source_text(model.adapter, whole=whole)} merged"] if model.adapter else []
    more = [f"context {model.context}"] if model.context else []
    arch = [f"{model.arch.family} {model.arch.size or 'of its own size'}"] if model.arch else []
    return ", ".join([source_text(model.source, whole=whole), *adapter, *arch, model.dtype, *more])


def source_text(source: Any, *, whole: bool = False) -> str:
    """`hf(openai/gsm8k, main, train)`, `jsonl(data/sums.jsonl)`, with paths as the file has them:
    without the `inputs/` of the run folder. With `whole`, what ships keeps its `forgedsl:`."""
    if source.kind == "mixture":
        return " + ".join(source_text(part, whole=whole) for part in source.sources)
    named = source.model_dump(exclude={"kind", "sha256", "weights"}, exclude_none=True)
    if "path" in named:
        named["path"] = written_path(named["path"])
    given = (str(value) for value in named.values())
    return f"{source.kind}({', '.join(v if whole else v.removeprefix(SHIPPED) for v in given)})"


def fields_text(part: Any, *leave_out: str) -> str:
    inner = part.model_dump(mode="json", exclude_none=True, exclude=set(leave_out))
    return ", ".join(f"{name} {value_text(value)}" for name, value in inner.items())


def value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def left_out(place: str) -> dict[str, str]:
    """Return the message about lines of the run folder that are not JSON."""
    return {"kind": "warning", "text": f"{place} is not valid JSON and was skipped"}


def render(data: RunData) -> str:
    """Return the page as HTML."""
    from jinja2 import Environment, StrictUndefined

    text = resources.files("forgedsl.runs").joinpath("templates/report.html.j2").read_text()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "trajectory": trajectory}
    heroes = [drawn for size in (WIDE, TALL) if (drawn := hero(data, size))]
    small = grid(data)
    style, words = outcome(data)
    began = datetime.fromtimestamp(data.begin, UTC)
    return environment.from_string(text).render(
        job=data.job,
        folder=data.folder,
        rehearsal=data.rehearsal,
        began=f"{began:%Y-%m-%d %H:%M} UTC" if data.begin else "",
        outcome_style=style,
        outcome=words,
        verdict=verdict(data),
        proofs=proofs.table(data),
        tiles=tiles(data),
        heroes=heroes,
        charts=small,
        logs=any(drawn.log for drawn in (*heroes, *small)),
        beside=data.beside.folder if data.beside is not None else "",
        differing=differing(data),
        hover=[drawn.hover for drawn in (*heroes, *small)],
        topology=topology_svg(data.job) if data.job.nodes else "",
        timeline=timeline(data),
        completions=completions(data),
        searched=[
            [s["step"], s.get("score"), s["prompt"], s["response"]]
            for s in data.samples[-SEARCHED:]
        ],
        services=services(data),
        settings=settings(data),
        processes=data.processes,
        versions=data.processes[0]["versions"] if data.processes else {},
        messages=[*map(left_out, data.spoilt), *data.messages][:50],
        drops=data.drops,
        lost=data.lost,
        errors=data.errors,
    )
