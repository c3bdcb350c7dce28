"""The top of the report and the last lines: did it learn, why not, what is slow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import make_job
from test_report import run_folder

from forgedsl.records import replace
from forgedsl.runs.data import RunData, Span, load_run, start_ups
from forgedsl.runs.page import startup
from forgedsl.runs.summary import summary
from forgedsl.runs.verdict import Finding, verdict, waits

Row = dict[str, Any]


def without_evals(event: Row) -> bool:
    return not event["kind"].startswith("eval.")


def findings(
    folder: Path,
    change: Callable[[Row], Row] = lambda row: {},
    *,
    keep: Callable[[Row], bool] = lambda event: True,
    steps: int = 120,
) -> dict[str, Finding]:
    """The findings about the made-up run with fields of its rows changed, by label."""
    run_folder(folder, make_job(), steps=steps)
    for name, of in (("metrics.jsonl", lambda row: row | change(row)), ("events.jsonl", None)):
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        kept = [of(row) for row in rows] if of else [row for row in rows if keep(row)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in kept))
    return {finding.label: finding for finding in verdict(load_run(folder))}


def test_a_run_whose_held_out_eval_rises_learned(tmp_path: Path) -> None:
    found = findings(tmp_path)["verdict"]
    assert found.style == "good"
    assert found.text == "it learned: held_out 0.530 -> 0.888 (step 0 and 100)"


def test_a_reward_within_its_noise_is_no_learning(tmp_path: Path) -> None:
    def flat(row: Row) -> Row:
        return {"reward_mean": 0.3 + 0.02 * (row["step"] % 3)}

    found = findings(tmp_path, flat, keep=without_evals)["verdict"]
    assert (found.style, found.text.partition(":")[0]) == ("bad", "it did not learn")


def test_a_reward_that_did_not_move_says_little_after_few_steps(tmp_path: Path) -> None:
    def flat(row: Row) -> Row:
        return {"reward_mean": 0.3 + 0.02 * (row["step"] % 3)}

    found = findings(tmp_path, flat, keep=without_evals, steps=8)["verdict"]
    said = "8 steps are too few to tell if it learns"
    assert (found.style, found.text.partition(":")[0]) == ("open", said)


def test_a_reward_that_falls_got_worse(tmp_path: Path) -> None:
    found = findings(tmp_path, lambda r: {"reward_mean": 1 - r["step"] / 200}, keep=without_evals)
    assert found["verdict"].text.startswith("it got worse: reward 0.9")


def test_few_steps_tell_nothing(tmp_path: Path) -> None:
    assert "too few steps" in findings(tmp_path, steps=4)["verdict"].text


@pytest.mark.parametrize(
    ("fields", "label", "style", "words"),
    [
        ({"dead_group_fraction": 0.97, "reward_mean": 0.1}, "dead groups", "bad", "97% of the gr"),
        ({"dead_group_fraction": 0.97, "reward_mean": 0.1}, "dead groups", "bad", "too hard"),
        (
            {"dead_group_fraction": 0.97, "reward_mean": 0.9},
            "dead groups",
            "open",
            "close to the best",
        ),
        ({"dead_group_fraction": 0.2}, "dead groups", "note", "20% of the groups"),
        (
            {"truncated_fraction": 0.4},
            "truncated",
            "bad",
            "truncated at max_tokens = 16 at the end",
        ),
        ({"skipped": True}, "skipped", "bad", "120 of 120 steps"),
        ({"grad_norm": 0.0}, "gradient", "bad", "the gradient is 0"),
        ({"failed/correct": 3, "sequences": 8}, "failed", "bad", "360 scores of 960 answers"),
        ({"rows_dropped": 2}, "rows", "open", "such rows were drawn and skipped 240 times"),
        ({"trainer_idle_s": 0.0, "sampler_idle_s": 0.1}, "speed", "note", "trainer-bound"),
    ],
)
def test_what_went_wrong_is_found_with_its_figures(
    tmp_path: Path, fields: Row, label: str, style: str, words: str
) -> None:
    found = findings(tmp_path, lambda row: fields)[label]
    assert found.style == style
    assert words in found.text


def test_growing_answers_and_a_collapse_of_entropy_are_found(tmp_path: Path) -> None:
    def changed(row: Row) -> Row:
        return {"response_tokens_mean": 100 + 5 * row["step"], "entropy": 0.9 ** row["step"]}

    found = findings(tmp_path, changed)
    assert found["length"].text.startswith("answers grew from 15")
    assert found["entropy"].text.startswith("collapsed from")


def test_entropy_of_demonstrations_is_free_to_fall(tmp_path: Path) -> None:
    def learned(row: Row) -> Row:
        return {"entropy": 0.9 ** row["step"], "age_max": None}

    assert "entropy" not in findings(tmp_path, learned)


def test_a_healthy_run_has_nothing_to_look_at(tmp_path: Path) -> None:
    assert [f.style for f in findings(tmp_path).values() if f.style in ("open", "bad")] == []


def test_failed_scores_are_told_with_the_cause_of_each_reward(tmp_path: Path) -> None:
    fields = {"failed/late": 3, "failed/dead": 1, "retried/late": 4, "sequences": 8}
    findings(tmp_path, lambda row: fields, steps=30)
    with (tmp_path / "events.jsonl").open("a") as file:
        for name, error in (("late", "no answer within 2 s"), ("dead", "exit code 3")):
            told = {"time": 1.8e9, "kind": "warning", "reward": name, "error": error}
            file.write(json.dumps(told) + "\n")
    said = summary(tmp_path, 0)
    assert (
        "120 scores of 240 answers: late (no answer within 2 s) 90, dead (exit code 3) 30" in said
    )
    assert "120 calls retried (setting `retries`): late (no answer within 2 s) 120" in said


def test_requests_that_an_endpoint_did_not_answer_at_once_are_told(tmp_path: Path) -> None:
    fields = {"requests_made/style": 9, "requests_again/style": 2, "requests_failed/style": 1}
    findings(tmp_path, lambda row: fields, steps=30)
    said = summary(tmp_path, 0)
    assert "270 requests to endpoints; repeated: style 60; failed: style 30" in said
    quiet = findings(tmp_path, lambda row: {"requests_made/style": 9, "requests_again/style": 0})
    assert "requests" not in quiet


def test_lost_answers_are_told_with_what_the_reward_said(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(), steps=30)
    lost = {"time": 1.8e9, "kind": "rollout.dropped", "reason": "reward correct",
            "message": "reward correct: TypeError: no float"}  # fmt: skip
    with (tmp_path / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(lost) + "\n" for _ in range(5))
    assert "  failed       5 scores of 5 answers: correct 5; reward correct: Type" in summary(
        tmp_path, 0
    )


def test_an_eval_whose_scores_failed_is_told(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(), steps=30)
    span = {"id": 7, "name": "held_out", "step": 30, "value": 0.9, "samples": 15, "failed": 17}
    with (tmp_path / "events.jsonl").open("a") as file:
        for time, edge in ((1.9e9, "start"), (1.9e9 + 1, "end")):
            file.write(json.dumps(span | {"time": time, "kind": f"eval.{edge}"}) + "\n")
    said = "  evals        held_out at step 30 is the mean of 15 of 32 answers: the others could"
    assert said in summary(tmp_path, 0)


def span(kind: str, start: float, end: float) -> Span:
    return Span(kind=kind, start=start, end=end, fields={})


def test_what_a_waiting_trainer_waits_for() -> None:
    spans: dict[str, tuple[Span, ...]] = dict.fromkeys(
        ("eval", "sample", "score", "logprobs", "sync"), ()
    )
    spans |= {
        "step": (span("step", 0, 1), span("step", 11, 12)),
        "sample": (span("sample", 0, 3),),
        "score": (span("score", 2, 9),),
        "sync": (span("sync", 8, 10),),
    }
    assert waits(spans) == pytest.approx(
        {"rewards": 0.6, "sampling": 0.2, "weight sync": 0.1, "other work": 0.1}
    )


def test_a_run_that_waits_for_weights_says_how_fast_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forgedsl.runs.verdict.waits", lambda spans, starts: {"weight sync": 0.9})

    def waiting(row: Row) -> Row:
        return {"trainer_idle_s": row["step_s"] / 2, "sync_bytes_per_s/generator": 24.1e6}

    found = findings(tmp_path, waiting)["speed"].text
    assert found == (
        "bound by weight sync: the trainer waited 50% of the time (weight sync 90% of that); "
        "24.1 MB/s to generator"
    )


def started(folder: Path, *begins: float) -> RunData:
    """A run with these starts, whose first step begins 30 seconds after each of them."""
    run_folder(folder, make_job(), steps=3)
    spans = [Span(kind="step", start=b + at, end=b + at + 5, fields={})
             for b in begins for at in (30, 40)]  # fmt: skip
    ready = tuple({"service": "trainer", "facts": {}, "time": begin + 20.0} for begin in begins)
    data = load_run(folder)
    return replace(
        data, starts=begins, begin=begins[0], seconds=40.0 * len(begins), ready=ready,
        spans=dict.fromkeys(data.spans, ()) | {"step": tuple(spans)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("begins", "note"),
    [((0.0,), "start-up 30 s"), ((0.0, 1e4, 2e4), "start-up 30 s (the last of 3 starts)")],
)
def test_the_start_up_is_that_of_the_newest_start(
    tmp_path: Path, begins: tuple[float, ...], note: str
) -> None:
    assert startup(started(tmp_path, *begins)) == note


def test_pauses_between_starts_are_no_start_up(tmp_path: Path) -> None:
    data = started(tmp_path, 0.0, 1e4)
    data = replace(data, spans=data.spans | {"step": data.spans["step"][2:]})  # none in the first
    assert start_ups(data) == [(1e4, 1e4 + 30)]
    (told,) = [f.text for f in verdict(data) if f.label == "start-up"]
    assert told == "30 s of 1 min 20 s passed before the first step"
    (told,) = [f.text for f in verdict(started(tmp_path, 0.0, 1e4)) if f.label == "start-up"]
    assert told == "1 min 0 s of 1 min 20 s passed before the first steps of 2 starts"


def test_the_time_between_a_stop_and_a_resume_is_no_waiting() -> None:
    spans: dict[str, tuple[Span, ...]] = dict.fromkeys(
        ("eval", "sample", "score", "logprobs", "sync"), ()
    )
    spans |= {
        "step": (span("step", 0, 1), span("step", 2, 3), span("step", 90, 91)),
        "score": (span("score", 1, 2),),
    }
    assert waits(spans, starts=(50.0,)) == {"rewards": 1.0}


def test_a_row_that_cannot_be_used_counts_once_in_however_many_passes(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(), steps=30)
    seen = [{"time": 1.8e9, "kind": "row.dropped", "dataset": "sums", "row": f"a.jsonl:{line}"}
            for line in (4, 9, 4, 9, 4, 9)]  # fmt: skip
    with (tmp_path / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in seen)
    assert load_run(tmp_path).left_out == ("a.jsonl:4", "a.jsonl:9")
