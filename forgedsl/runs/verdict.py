"""Findings about a run, with evidence: did it learn, why not, what is slow. The most important
first.

    RunData --verdict--> Finding(s)     the top of report.html, the last lines of `forgec run`

Every finding quotes its figures. A curve has changed if the means of its two ends differ by more
than their noise.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator

from forgedsl.diagnostics import counted
from forgedsl.operations.registry import working
from forgedsl.records import dataclass, replace
from forgedsl.runs import proofs, syncs
from forgedsl.runs.data import RunData, Span, start_ups
from forgedsl.runs.text import duration, number
from forgedsl.types.flow import Role

Points = tuple[tuple[float, float], ...]

EDGE = 20
"""number of steps averaged at each end of a curve"""
FEWEST = 6
"""minimum number of steps for a finding about learning"""
SHORT = 20
"""below this number of steps, a value that did not move means nothing"""
NOISE = 2.0
"""number of standard errors that a change must exceed"""
SMALL = 0.02
"""relative change below which a value counts as unchanged"""
DEAD, ALL_DEAD = 0.5, 0.9
HIGH = 0.7
"""fraction of the range of scores above which a reward is near its maximum"""
CUT, MOST_CUT = 0.1, 0.3
FAILED = 0.05
GROWN = 1.5
COLLAPSED = 0.1
"""entropy has collapsed if it is below this fraction of the initial one"""
WAITING = 0.25
"""fraction of time from which waiting is reported"""
STEPS = 200
"""number of last steps that decide what is waited for"""
EVALS = "evals"
AT_ONCE = "gap/age_0"
"""metric: difference of the log-probs of trainer and sampler with equal weights"""


DOUBTS = ("skipped", "gradient", "failed", "lost", "evals")
"""findings that cast doubt on what was learned"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding. `style` is good, open (needs attention), bad, or note."""

    label: str
    style: str
    text: str


def points(data: RunData, field: str) -> Points:
    """Return the values of a field over steps; a step whose value is NaN or infinite has no
    point."""
    return tuple(
        (row["step"], row[field])
        for row in data.rows
        if isinstance(row.get(field), (int, float)) and math.isfinite(row[field])
    )


def evals(data: RunData) -> dict[str, Points]:
    """Return the points of every eval, at the steps whose weights were evaluated."""
    found: dict[str, dict[int, float]] = {}
    for span in data.spans["eval"]:
        if span.fields.get("value") is not None:
            values = found.setdefault(span.fields["name"], {})
            values[span.fields["step"]] = span.fields["value"]
    return {name: tuple(sorted(values.items())) for name, values in found.items()}


def is_loss(data: RunData, name: str) -> bool:
    """True if an eval measures a loss, so that less is better."""
    found = data.job.evals.get(name)
    return found is not None and found.loss is not None


def edge_size(pts: Points) -> int:
    """Return the number of values to average at each end: EDGE, fewer in a short run."""
    return min(EDGE, len(pts) // 2)


def edges(pts: Points) -> tuple[float, float] | None:
    """Return the means of the first and of the last EDGE values; None if they would overlap."""
    size = edge_size(pts)
    values = [y for _, y in pts]
    return (statistics.fmean(values[:size]), statistics.fmean(values[-size:])) if size else None


def at_end(pts: Points) -> float | None:
    """Return the mean of the last EDGE values, or the value of a run of one step; None without
    values."""
    pair = edges(pts)
    return pair[1] if pair is not None else pts[-1][1] if pts else None


def verdict(data: RunData) -> tuple[Finding, ...]:
    """Return all findings about a run."""
    if data.rehearsal or not data.rows:
        return ()
    makers = (
        _learning,
        _restarts,
        _steps,
        _scores,
        _unmeasured,
        _dropped,
        _signal,
        _truncated,
        _length,
        _entropy,
        _speed,
        _proofs,
    )
    first, *rest = (finding for make in makers for finding in make(data))
    doubts = [f.label for f in rest if f.style == "bad" and f.label in DOUBTS]
    if first.style == "good" and doubts:
        first = replace(first, style="open", text=f"{first.text}; but see also {', '.join(doubts)}")
    return (first, *rest)


def _restarts(data: RunData) -> Iterator[Finding]:
    """Yield findings about failed services and their restarts."""
    if data.restarts:
        names = Counter(str(event["service"]) for event in data.restarts)
        said = ", ".join(f"{name} {counted(n, 'time')}" for name, n in names.most_common())
        again = [event["step"] for event in data.restarts if event["kind"] == "restarted"]
        steps = f"; the run was restarted from step {', '.join(map(str, again))}" if again else ""
        yield Finding(label="restarts", style="open", text=f"failed: {said}{steps}")


# ---- did it learn


def _learning(data: RunData) -> Iterator[Finding]:
    """Return the finding on learning: from held-out data, else from the reward, else from the
    loss."""
    reward = points(data, "reward_mean")
    if len(data.rows) < FEWEST:
        yield Finding(label="verdict", style="open", text="too few steps to tell if it learns")
        return
    found = [(name, *_moved_eval(data, name, pts)) for name, pts in evals(data).items()]
    held = [one for one in found if one[1] is not None]
    trained = _moved(reward)
    if held:
        names = "; ".join(text for _, _, text in held)
        ups, downs = [s > 0 for _, s, _ in held if s], [s < 0 for _, s, _ in held if s]
        if any(downs):
            yield Finding(label="verdict", style="bad", text=f"it got worse: {names}")
        elif any(ups):
            yield Finding(label="verdict", style="good", text=f"it learned: {names}")
        elif trained > 0:
            text = f"the reward rose, but held-out data show no progress: {names}"
            yield Finding(label="verdict", style="open", text=text)
        else:
            style, words = _nothing(len(data.rows))
            yield Finding(label="verdict", style=style, text=f"{words}: {names}")
    elif reward:
        yield _of("reward", reward, trained)
    else:
        loss = points(data, "loss")
        yield _of("loss", loss, -_moved(loss))


def _nothing(steps: int) -> tuple[str, str]:
    """Return the finding for a value that did not move; after few steps it means little."""
    if steps < SHORT:
        return "open", f"{counted(steps, 'step')} are too few to tell if it learns"
    return "bad", "it did not learn"


def _of(name: str, pts: Points, better: int) -> Finding:
    pair = edges(pts)
    if pair is None:
        return Finding(
            label="verdict", style="open", text=(f"there is no {name} to judge progress by")
        )
    size = edge_size(pts)
    text = f"{name} {number(pair[0])} -> {number(pair[1])} (first and last {counted(size, 'step')})"
    style, words = {
        1: ("good", "it learned"), 0: _nothing(len(pts)), -1: ("bad", "it got worse"),
    }[better]  # fmt: skip
    return Finding(label="verdict", style=style, text=f"{words}: {text}")


def _moved(pts: Points) -> int:
    """Return 1 if the values rose by more than their noise, -1 if they fell, else 0."""
    size, pair = edge_size(pts), edges(pts)
    if pair is None:
        return 0
    ends = [[y for _, y in part] for part in (pts[:size], pts[-size:])]
    noise = sum(statistics.pvariance(end) / size for end in ends) ** 0.5
    return _sign(pair[0], pair[1], noise)


def _sign(before: float, after: float, noise: float) -> int:
    change = after - before
    if abs(change) <= max(NOISE * noise, SMALL * max(abs(before), abs(after))):
        return 0
    return 1 if change > 0 else -1


def _moved_eval(data: RunData, name: str, pts: Points) -> tuple[int | None, str]:
    """Return (better, worse or neither; text); None if there is only one value."""
    if len(pts) < 2:
        return None, ""
    spans = {s.fields["step"]: s.fields for s in data.spans["eval"] if s.fields["name"] == name}
    (first, before), (last, after) = pts[0], pts[-1]
    noise = sum(
        (spans[step].get("std") or 0.0) ** 2 / max(spans[step].get("samples") or 1, 1)
        for step in (first, last)
    )
    text = f"{name} {number(before)} -> {number(after)} (step {first:.0f} and {last:.0f})"
    better = _sign(before, after, noise**0.5)
    return (-better if is_loss(data, name) else better), text


# ---- why not


def _steps(data: RunData) -> Iterator[Finding]:
    skipped = sum(bool(row.get("skipped")) for row in data.rows)
    if skipped:
        text = f"{skipped} of {len(data.rows)} steps: their loss or gradient was not finite"
        yield Finding(label="skipped", style="bad", text=text)
    pair = edges(points(data, "grad_norm"))
    if pair and pair[1] < 1e-9:
        text = "the gradient is 0 at the end: the run no longer learns"
        yield Finding(label="gradient", style="bad", text=text)


def total(data: RunData, field: str) -> float:
    """Return the sum of a field over all steps."""
    return sum(y for _, y in points(data, field))


def named(data: RunData, prefix: str) -> dict[str, int]:
    """Return the sums of fields `prefix/<name>` by name, the largest first, without zeros."""
    names = sorted({key for row in data.rows for key in row if key.startswith(f"{prefix}/")})
    sums = {name.removeprefix(f"{prefix}/"): round(total(data, name)) for name in names}
    return dict(sorted(((n, c) for n, c in sums.items() if c), key=lambda item: -item[1]))


def ranked(counts: dict[str, int]) -> str:
    """`filter mixed 42, reward correct 8`."""
    return ", ".join(f"{why} {count}" for why, count in sorted(counts.items(), key=lambda c: -c[1]))


def _requests(data: RunData) -> Iterator[Finding]:
    """Yield findings about requests to endpoints that were repeated, slow or failed."""
    words = {"again": "repeated", "slow": "slow", "failed": "failed"}
    said = {
        word: ranked(found)
        for what, word in words.items()
        if (found := named(data, f"requests_{what}"))
    }
    if said:
        made = sum(named(data, "requests_made").values())
        text = "; ".join(f"{word}: {names}" for word, names in said.items())
        many = counted(made, "request")
        yield Finding(label="requests", style="open", text=f"{many} to endpoints; {text}")


def _scores(data: RunData) -> Iterator[Finding]:
    """Yield findings about failed scores, and about lost completions."""
    failed = named(data, "failed")
    lost = {why: count for why, count in data.lost.items() if why not in _of_rewards(failed)}
    if not failed:
        failed = {w.removeprefix("reward "): n for w, n in lost.items() if w.startswith("reward ")}
        lost = {why: count for why, count in lost.items() if not why.startswith("reward ")}
    answers = total(data, "sequences") + total(data, "rollouts_dropped")
    answers = answers or len(data.spans["score"]) or sum(data.lost.values())
    why = _causes(data)
    if failed:
        share = max(failed.values()) / max(answers, 1)
        style = "bad" if share > FAILED else "open"
        error = next((text for text in data.errors if text), "")
        more = f"; {error[:160]}" if error and not failed.keys() & why.keys() else ""
        said = ranked({f"{name}{why.get(name, '')}": count for name, count in failed.items()})
        text = f"{sum(failed.values())} scores of {answers:.0f} answers: {said}{more}"
        yield Finding(label="failed", style=style, text=text)
    if again := named(data, "retried"):
        said = ranked({f"{name}{why.get(name, '')}": count for name, count in again.items()})
        text = f"{counted(sum(again.values()), 'call')} retried (setting `retries`): {said}"
        yield Finding(label="retried", style="open", text=text)
    yield from _requests(data)
    if lost:
        count = sum(lost.values())
        style = "bad" if count > FAILED * answers else "open"
        text = f"{count} of {answers:.0f} answers: {ranked(lost)}"
        yield Finding(label="lost", style=style, text=text)
    if times := total(data, "rows_dropped"):
        count = len(data.left_out)
        more = "100 or more rows" if count >= 100 else counted(count, "row")
        what = f"{more} of the data" if count else "rows"
        where = f" (the first: {data.left_out[0]})" if count else ""
        often = counted(int(times), "time")
        text = f"{what} cannot be used{where}; such rows were drawn and skipped {often}"
        yield Finding(label="rows", style="open", text=text)


def _unmeasured(data: RunData) -> Iterator[Finding]:
    """Yield findings about evals with few scored completions."""
    last = {span.fields["name"]: span.fields for span in data.spans["eval"]}
    for name, fields in last.items():
        failed, scored = fields.get("failed", 0), fields.get("samples", 0)
        if failed > FAILED * (failed + scored):
            text = f"{name} at step {fields['step']} is the mean of {scored} of {failed + scored} "
            text += "answers: the others could not be scored"
            yield Finding(label="evals", style="bad", text=text)


def _causes(data: RunData) -> dict[str, str]:
    """Return the last error of each reward that failed: ` (ValueError: ...)` by name."""
    told = [each for each in data.messages if each.get("reward") and each.get("error")]
    return {each["reward"]: f" ({each['error'][:100]})" for each in told}


def _of_rewards(failed: dict[str, int]) -> set[str]:
    return {f"reward {name}" for name in failed}


def _dropped(data: RunData) -> Iterator[Finding]:
    if data.drops:
        count = sum(data.drops.values())
        kept = total(data, "groups")
        style = "bad" if count > kept else "note"
        yield Finding(label="dropped", style=style, text=dropped(data.drops))


def dropped(drops: dict[str, int]) -> str:
    """`50 groups: filter mixed 42, reward correct 8`."""
    count = sum(drops.values())
    reasons = ranked(drops) if len(drops) > 1 else next(iter(drops))
    return f"{count} group{'s' if count > 1 else ''}: {reasons}"


def _signal(data: RunData) -> Iterator[Finding]:
    """Yield the finding about groups with equal scores, which give no gradient."""
    pts = points(data, "dead_group_fraction")
    if not pts:
        return
    before, after = edges(pts) or (pts[0][1], pts[-1][1])
    if after < 0.005 and before < 0.005:
        return
    style, why = "note", ""
    if after >= DEAD:
        style, why = _why_dead(data, "bad" if after >= ALL_DEAD else "open")
    text = (
        f"in {after:.0%} of the groups at the end ({before:.0%} at first) all answers have the "
        "same score"
    )
    text += why
    yield Finding(label="dead groups", style=style, text=text)


def _why_dead(data: RunData, style: str) -> tuple[str, str]:
    """Return (style, text) by the position of the reward in the range of observed scores."""
    scores = [sample["score"] for sample in data.samples if sample.get("score") is not None]
    reward = edges(points(data, "reward_mean"))
    if not reward or not scores or max(scores) == min(scores):
        return style, ": they give no gradient"
    place = (reward[1] - min(scores)) / (max(scores) - min(scores))
    if place > HIGH:
        return "open", ", close to the best score: little is left to learn from these prompts"
    if place < 1 - HIGH:
        return style, (
            ", close to the lowest: the prompts are too hard, or the reward is never earned"
        )
    return style, ": the reward does not tell answers apart"


def _truncated(data: RunData) -> Iterator[Finding]:
    pts = points(data, "truncated_fraction")
    if not pts:
        return
    before, after = edges(pts) or (pts[0][1], pts[-1][1])
    if after < CUT:
        return
    limits = [service.sampling.max_tokens for service in data.job.samplers.values()]
    at = f" at max_tokens = {', '.join(map(str, limits))}" if limits else ""
    text = f"{after:.0%} of the answers are truncated{at} at the end ({before:.0%} at first)"
    yield Finding(label="truncated", style="bad" if after >= MOST_CUT else "open", text=text)


def _length(data: RunData) -> Iterator[Finding]:
    pair = edges(points(data, "response_tokens_mean"))
    if pair and pair[1] > GROWN * pair[0]:
        text = f"answers grew from {number(pair[0])} to {number(pair[1])} tokens"
        yield Finding(label="length", style="open", text=text)


def _entropy(data: RunData) -> Iterator[Finding]:
    sampled = points(data, "age_max")  # not for demonstrations and pairs, where it should fall
    pair = edges(points(data, "entropy"))
    if sampled and pair and 0 < pair[1] < COLLAPSED * pair[0]:
        text = (
            f"collapsed from {number(pair[0])} to {number(pair[1])} nats per token: sampled "
            "answers hardly differ any more"
        )
        yield Finding(label="entropy", style="open", text=text)


# ---- what is slow


def _speed(data: RunData) -> Iterator[Finding]:
    rows = [row for row in data.rows[1:] if row.get("step_s")]
    wall = sum(row["step_s"] for row in rows)
    if len(rows) >= FEWEST - 1 and wall:
        idle = sum(row.get("trainer_idle_s") or 0.0 for row in rows) / wall
        starved = sum(row.get("sampler_idle_s") or 0.0 for row in rows) / wall
        yield Finding(label="speed", style="note", text=_bound(data, idle, starved))
    found, whole = start_ups(data), data.seconds
    start = sum(first - begin for begin, first in found)
    if start > whole / 3:
        first_steps = f"first steps of {len(found)} starts" if len(found) > 1 else "first step"
        text = f"{duration(start)} of {duration(whole)} passed before the {first_steps}"
        made = sum(first - _all_ready(data, begin, first) for begin, first in found)
        if made > start / 2:
            text += f", {duration(made)} of it for sampling and scoring, with all services ready"
        yield Finding(label="start-up", style="note", text=text)


def _all_ready(data: RunData, begin: float, first: float) -> float:
    """Return when the last service became ready that did so between two times, else the first."""
    return max((e["time"] for e in data.ready if begin <= e["time"] < first), default=begin)


def _bound(data: RunData, idle: float, starved: float) -> str:
    samples = any(Role.SAMPLES in node.roles for node in data.job.nodes)
    if idle >= WAITING:
        shares = waits(data.spans, data.starts)
        worst = max(shares, key=shares.__getitem__, default="")
        parts = ", ".join(f"{n} {s:.0%}" for n, s in shares.items() if s >= 0.01)
        parts = parts.replace("%", "% of that", 1)  # the first share says what it is a share of
        words = _slow(worst)
        came = f"; {speed}" if worst == "weight sync" and (speed := syncs.rates(data.rows)) else ""
        return f"{words}: the trainer waited {idle:.0%} of the time" + (
            f" ({parts}){came}" if parts else ""
        )
    if not samples or starved >= WAITING:
        nobody = f"; the sampler was idle {starved:.0%} of the time" if samples else ""
        return f"trainer-bound: the trainer was busy {1 - idle:.0%} of the time{nobody}"
    return f"balanced: the trainer waited {idle:.0%} of the time, the sampler {starved:.0%}"


def _slow(waiting: str) -> str:
    """Return the text for a run whose trainer waits for this."""
    words = {each.waiting: each.bound_by for each in working() if each.waiting}
    return {EVALS: "bound by evals", **words}.get(waiting, "the trainer waits")


def waits(spans: dict[str, tuple[Span, ...]], starts: tuple[float, ...] = ()) -> dict[str, float]:
    """Return what was running while the trainer waited between steps, as fractions of that time.

    The time from a stop to the first step after the next start is left out.
    """
    steps = spans["step"][-STEPS:]
    gaps = [
        (a.end, b.start)
        for a, b in itertools.pairwise(steps)
        if b.start > a.end and not any(a.end < start < b.start for start in starts)
    ]
    if not gaps:
        return {}
    begin, end = gaps[0][0], gaps[-1][1]
    edges_ = [(time, "gap", way) for gap in gaps for time, way in zip(gap, (1, -1), strict=True)]
    work = [("eval", EVALS), *((each.name, each.waiting) for each in working() if each.waiting)]
    for kind, _ in work:
        inside = [s for s in spans[kind] if s.end > begin and s.start < end]
        edges_ += [(s.start, kind, 1) for s in inside] + [(s.end, kind, -1) for s in inside]
    open_ = dict.fromkeys(("gap", *(kind for kind, _ in work)), 0)
    found: dict[str, float] = {}
    last = begin
    for time, kind, way in sorted(edges_):
        if open_["gap"]:
            doing = next((words for k, words in work if open_[k]), "other work")
            found[doing] = found.get(doing, 0.0) + time - last
        open_[kind] += way
        last = time
    whole = sum(b - a for a, b in gaps)
    return {name: t / whole for name, t in sorted(found.items(), key=lambda i: -i[1]) if t}


# ---- proofs of the run


def _proofs(data: RunData) -> Iterator[Finding]:
    """Yield findings of proofs: bitwise comparison of published weights, and the gap between
    trainer and sampler with equal weights."""
    moved = [
        span
        for spans in data.spans.values()
        for span in spans
        if span.fields.get("transport") and span.fields.get("bytes")
    ]
    proved = [span for span in moved if span.fields.get("proved")]
    parts = []
    if proved:
        some = (
            f"{len(proved)} of" if len(proved) < len(moved) else "the" if len(moved) == 1 else "all"
        )
        count = counted(len(moved), "weight transfer")
        parts.append(f"{some} {count} arrived bit for bit ({proved[-1].fields['proved']} tensors)")
    if gaps := [row[AT_ONCE] for row in data.rows if row.get(AT_ONCE) is not None]:
        text = f"log-probs of trainer and sampler differ by at most {number(max(gaps))} at age 0"
        parts.append(f"{text} in the mean of a step ({counted(len(gaps), 'step')} compared)")
    held = {r["service"]: r["facts"]["frozen"] for r in data.ready if r["facts"].get("frozen")}
    held |= {line["service"]: line for r in data.ready for line in r["facts"].get("tenants", ())}
    for service, proof in held.items():
        what = counted(proof["proved"], "tensor")
        parts.append(f"{service} holds the weights of its folder bit for bit ({what})")
    parts += proofs.closing(data.proofs)
    if parts:
        yield Finding(label="proofs", style="note", text="; ".join(parts))
