"""report.html, made from the folder of a made-up run (synthetic.py) and nothing else."""

import fcntl
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from synthetic import make_events, make_job

from forgedsl.cli.main import main
from forgedsl.lower import job as spec
from forgedsl.records import replace
from forgedsl.runs import usage, write_report
from forgedsl.runs.charts import Series, chart, thin, ticks, trend
from forgedsl.runs.checkpoints import no_run
from forgedsl.runs.data import load_run, overlap
from forgedsl.runs.summary import summary
from forgedsl.runs.timeline import timeline
from forgedsl.runs.topology import place, topology_svg
from forgedsl.runs.verdict import points
from forgedsl_runtime.readers import close_readers, open_readers
from forgedsl_runtime.readers.sinks import keep_rows

VOID = {"meta", "link", "br", "img", "input", "hr"}


def run_folder(folder: Path, job: spec.Job, *, steps: int | None = None) -> Path:
    (folder / "job.json").write_text(job.model_dump_json())
    readers = open_readers(job, folder, quiet=True)
    with (folder / "events.jsonl").open("w") as file:
        for event in make_events(job, steps=steps):
            file.write(json.dumps(event) + "\n")
            for reader in readers:
                reader.on_event(event)
    close_readers(readers)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = run_folder(tmp_path_factory.mktemp("run"), make_job())
    return write_report(folder).read_text()


def test_a_step_whose_value_is_not_finite_has_no_point(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, make_job())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[1] |= {"loss": float("nan"), "reward_mean": float("inf"), "grad_norm": float("-inf")}
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for field in ("loss", "reward_mean", "grad_norm"):
        assert [x for x, _ in points(load_run(folder), field)] == [
            row["step"] for row in rows if row is not rows[1]
        ]
    assert "<svg" in write_report(folder).read_text()


class Balance(HTMLParser):
    """Notes tags that are closed in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass


def test_page_is_well_formed(page: str) -> None:
    balance = Balance()
    balance.feed(page)
    assert (balance.wrong, balance.open) == ([], [])


def test_page_needs_no_network(page: str) -> None:
    assert re.findall(r"https?://|src=|@import|url\((?!#)", page) == []


def test_page_shows_every_part(page: str) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == ["Training", "Who worked when", "Topology", "Completions", "Set-up"]
    charts = re.findall(r"<h3>(.*?)</h3>", page)
    assert charts[:3] == ["Reward", "Reward", "held_out"]  # wide, and for a phone
    assert {"Loss", "Entropy", "Gradient norm", "Policy age", "clip_frac", "kl_ref"} <= set(charts)


def test_page_begins_with_the_verdict(page: str) -> None:
    assert page.index('class="card verdict"') < page.index('class="tiles"')
    assert "it learned: held_out 0.530 -&gt; 0.888" in page


def test_curves_of_every_reward(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(steps=10))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    own = {"reward/short": 1.0, "critic/loss/error": 0.5}
    split = [row | own | {"reward/correct": 0.1 * row["step"]} for row in rows]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in split))
    charts = re.findall(r"<h3>(.*?)</h3>", write_report(tmp_path).read_text())
    assert {"reward correct", "reward short", "critic/error"} <= set(charts)


def doubtful(folder: Path) -> str:
    """A page of a run whose scores failed, with a service that was started again."""
    run_folder(folder, make_job())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    own = {"failed/correct": 3, "retried/correct": 1, "reward_s/correct": 0.5, "sequences": 32}
    split = [row | own | {"reward/correct": row["reward_mean"]} for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in split))
    with (folder / "events.jsonl").open("a") as file:
        for kind, more in (("service.lost", {}), ("restarted", {"step": 50})):
            event = {"time": 0, "kind": kind, "service": "generator", **more}
            file.write(json.dumps(event) + "\n")
    return write_report(folder).read_text()


def test_no_two_charts_have_one_title(tmp_path: Path) -> None:
    charts = re.findall(r"<h3>(.*?)</h3>", doubtful(tmp_path))
    assert charts.count("Reward") == 2  # wide, and for a phone
    assert sorted(set(charts)) == sorted(charts[1:])


def test_axes_say_what_they_count(page: str) -> None:
    drawn = re.findall(r'data-chart="\d+">.*?</svg>', page, re.DOTALL)
    units = [re.findall(r'class="unit"[^>]*>([^<]*)<', chart) for chart in drawn]
    assert len(units) > 8
    assert all(len(named) == 2 and all(named) and named[1] == "step" for named in units)


def test_a_legend_says_what_the_headline_says(page: str) -> None:
    [headline] = re.findall(r'<span class="label">Reward</span>\s*<b>(.*?)</b>', page)
    legends = re.findall(r'data-name="reward (.*?)"', page)
    assert legends == [headline, headline]


def test_a_verdict_is_not_green_above_scores_that_failed(tmp_path: Path) -> None:
    page = doubtful(tmp_path)
    [(style, text)] = re.findall(r'<b class="(\w+)">verdict</b><span>(.*?)</span>', page)
    assert (style, text[:11], text[-21:]) == ("open", "it learned:", "; but see also failed")


def test_restarts_are_told_at_the_top(tmp_path: Path) -> None:
    told = "failed: generator 2 times; the run was restarted from step 50"
    page = doubtful(tmp_path)
    assert page.index("verdict</b>") < page.index(told) < page.index("failed</b>")


def test_all_samples_can_be_searched(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(steps=3))
    with (tmp_path / "samples.jsonl").open("a") as file:
        for i in range(50):
            sample = {"step": 1, "prompt": f"p{i}<b>", "response": "r", "version": 1, "score": 0.5}
            file.write(json.dumps(sample) + "\n")
    text = write_report(tmp_path).read_text()
    [searched] = re.findall(r"const searched = (.*);", text)
    assert {f"p{i}<b>" for i in range(50)} <= {prompt for _, _, prompt, _ in json.loads(searched)}


def test_a_sample_shows_its_split_its_cut_and_its_siblings(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(steps=3))
    sibling = {"sibling": 1, "score": 0.0, "truncated": False, "response": "another <answer>"}
    sample = {"step": 4, "prompt": "1+1=", "response": "2", "target": "2", "score": 0.5,
              "version": 1, "tokens": 5, "truncated": True, "siblings": [sibling],
              "parts": {"correct": 1.0, "short": 0.25}}  # fmt: skip
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write(json.dumps(sample) + "\n")
    text = write_report(tmp_path).read_text()
    assert ">truncated</span>" in text
    assert "<span>correct <b>1.000</b></span><span>short <b>0.250</b></span>" in text
    assert "1 other answers of the group" in text
    assert "another &lt;answer&gt;" in text


def test_a_trajectory_shows_its_requests(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(steps=3))
    first = {"at": [0, 6], "row": 0, "seen": 4, "tokens": 3, "versions": [[1, 2], [2, 1]],
             "start": 0.0, "seconds": 0.25, "calls": ["lookup"], "truncated": False}  # fmt: skip
    second = first | {"at": [13, 14], "row": 1, "seen": 9, "versions": [[2, 3]], "calls": []}
    sample = {"step": 4, "prompt": "1+1=", "response": "<call>result 2", "score": 0.5, "version": 1,
              "turns": 2, "ended": "done", "rows": 2, "answers": [first, second]}  # fmt: skip
    one_row = {name: each for name, each in sample.items() if name != "rows"}
    with (tmp_path / "samples.jsonl").open("a") as file:
        for each in (sample, one_row):
            file.write(json.dumps(each) + "\n")
    text = write_report(tmp_path).read_text()
    assert "2 answers, ended: done" in text
    assert "2 answers in 2 training rows, ended: done" in text
    assert "<span>version <b>1, 2</b></span><span>call <b>lookup</b></span>" in text
    assert '<pre class="dim">result </pre>' in text
    assert "<pre>&lt;call&gt;</pre>" in text


def test_settings_say_what_was_in_force(tmp_path: Path) -> None:
    source = spec.LocalModel(path="forgedsl:models/tiny_math", sha256="")
    models = {"policy": spec.Model(source=source, dtype="f32", context=256)}
    params = {"model_id": "Qwen/Qwen3-1.7B", "group": 8}
    job = make_job(steps=3).model_copy(update={"models": models, "params": params}).sealed()
    text = write_report(run_folder(tmp_path, job)).read_text()
    assert "local(models/tiny_math), f32, context 256" in text
    assert re.search(r"Qwen/Qwen3-1.7B</code> <span[^>]*>not in force under profile cpu", text)
    assert text.count("not in force") == 1


def test_report_of_a_run_that_is_still_going(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(), steps=30)
    with (tmp_path / ".running").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ">running</span>" in write_report(tmp_path).read_text()
    assert ">not finished</span>" in write_report(tmp_path).read_text()


def test_a_run_that_is_over_is_finished_though_its_lock_is_still_held(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(steps=5))
    with (tmp_path / ".running").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ">finished</span>" in write_report(tmp_path).read_text()
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"time": 2e9, "kind": "run.start", "name": "example"}\n')
    assert ">not finished</span>" in write_report(tmp_path).read_text()


@pytest.fixture
def continued(tmp_path: Path) -> Path:
    """A run that was stopped after 30 steps, and continued for 5 a thousand hours later."""
    run_folder(tmp_path, make_job(steps=30))
    later = [event | {"time": event["time"] + 3.6e6} for event in make_events(make_job(steps=5))]
    with (tmp_path / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in later)
    return tmp_path


def test_the_time_between_a_stop_and_the_resume_is_no_time_of_the_run(continued: Path) -> None:
    assert "30 steps in 24 s" in summary(continued, 0)
    assert "<b>0:24</b>" in write_report(continued).read_text()


def test_the_timeline_shows_steps_of_one_session(continued: Path) -> None:
    data = load_run(continued)
    drawn = timeline(replace(data, spans=data.spans | {"step": data.spans["step"][-10:]}))
    assert drawn is not None
    assert drawn.seconds < 10


def test_svgs_are_xml(page: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page, re.S)
    assert [ET.fromstring(svg).tag for svg in drawings] == ["svg"] * 16  # three also logarithmic


def test_text_of_a_completion_cannot_become_markup(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(steps=3))
    evil = {"step": 4, "prompt": "<script>x</script>", "response": "&", "target": None,
            "score": None, "version": 1}  # fmt: skip
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write(json.dumps(evil) + "\n")
    assert "<script>x" not in write_report(tmp_path).read_text()


def test_report_of_a_killed_run(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(), steps=30)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"time": 1.0, "ki')
    text = write_report(tmp_path).read_text()
    assert "not finished" in text
    assert "of 120" in text


def test_lines_that_a_crash_has_spoilt_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder(tmp_path, make_job(steps=20))
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines(keepends=True)
    lines[40:43] = [b'{"time": 1.0, "ki\n', b"\0\0\0\xff\n", b"7\n"]
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines))
    monkeypatch.setattr("sys.argv", ["forgec", "report", str(tmp_path)])
    with pytest.raises(SystemExit, match="0"):
        main()
    places = ", ".join(f"{tmp_path}/events.jsonl:{number}" for number in (41, 42, 43))
    assert capsys.readouterr().err == f"note: skipped lines that are not JSON: {places}\n"
    assert (
        "events.jsonl:42 is not valid JSON and was skipped"
        in (tmp_path / "report.html").read_text()
    )


def test_a_resumed_run_drops_rows_that_are_spoilt_or_come_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\xff\n\0\0\n{"step": 2}\n{"step": 3}\n{"step"')
    keep_rows(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_folder_that_is_no_run_says_what_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "grpo-1").mkdir()
    (tmp_path / "grpo-1/job.json").touch()
    assert no_run(tmp_path / "grpo-2").endswith(f"; did you mean `{tmp_path}/grpo-1`?")
    assert no_run(tmp_path).endswith(f"; the newest run in it is {tmp_path}/grpo-1")


def test_report_of_a_run_without_a_step(tmp_path: Path) -> None:
    text = write_report(run_folder(tmp_path, make_job(), steps=0)).read_text()
    assert "No optimizer step was finished" in text


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ((), "is not a run folder: it has no job.json"),
        (("job.json",), "contains a job that has not been run yet"),
        (("job.json", "events.jsonl", "report.html/x"), "cannot write"),
    ],
)
def test_a_report_that_cannot_be_made_says_why(
    tmp_path: Path,
    files: tuple[str, ...],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(make_job().model_dump_json() if name == "job.json" else "")
    monkeypatch.setattr("sys.argv", ["forgec", "report", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, text in capsys.readouterr().err) == (2, True)


def test_report_charts_how_fast_weights_come(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(steps=30))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    came = [json.dumps(row | {"sync_bytes_per_s/generator": 24.1e6}) + "\n" for row in rows]
    (tmp_path / "metrics.jsonl").write_text("".join(came))
    page = write_report(tmp_path).read_text()
    assert "sync generator" in re.findall(r"<h3>(.*?)</h3>", page)
    assert "rate of weight transfer, MB per second" in page


def sampled(folder: Path, *, steps: int) -> Path:
    """A run with usage events: memory that grows, one GPU."""
    folder.mkdir(exist_ok=True)
    run_folder(folder, make_job(steps=steps), steps=steps)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    ends = [event["time"] for event in events if event["kind"] == "step.end"]
    with (folder / "events.jsonl").open("a") as file:
        for i, time in enumerate((ends[0], ends[0] - 1e-3, ends[-1])):
            gpus = [{"index": 1, "memory": (10 + i) * 2**30, "load": 0.25 * (i + 1)}]
            event = {"time": time, "kind": "usage", "memory": {"trainer": (i + 1) * 2**30}}
            file.write(json.dumps(event | {"gpus": gpus}) + "\n")
    return folder


def test_memory_and_gpus_are_charted_over_the_steps(tmp_path: Path) -> None:
    data = load_run(sampled(tmp_path, steps=30))
    assert usage.memory(data) == {"trainer": ((1.0, 2.0), (30.0, 3.0))}
    assert usage.gpu_memory(data) == {"GPU 1": ((1.0, 11.0), (30.0, 12.0))}
    assert usage.gpu_load(data) == {"GPU 1": ((1.0, 0.375), (30.0, 0.75))}
    titles = re.findall(r"<h3>(.*?)</h3>", write_report(tmp_path).read_text())
    assert {"Memory", "GPU memory", "GPU load"} <= set(titles)


def reported(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["forgec", "report", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_two_runs_lie_over_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm, cold = (sampled(tmp_path / n, steps=s) for n, s in (("warm", 60), ("cold", 40)))
    alone = write_report(warm).read_text()
    assert reported(monkeypatch, str(warm), "--beside", str(cold)) == 0
    page = (warm / "report-beside-cold.html").read_text()
    assert (warm / "report.html").read_text() == alone
    assert page.count('class="line c1 other"') > 5 > alone.count(' other"') == 0
    assert re.findall(r'data-name="reward, cold (.*?)"', page)
    assert re.search(
        r"<td>schedule</td><td><code>.*steps 60.*</code></td><td><code>.*steps 40", page
    )


def test_a_run_beside_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sampled(tmp_path / "run", steps=5)
    assert reported(monkeypatch, str(run), "--beside", str(tmp_path / "no")) == 2
    assert "forgec report: " in capsys.readouterr().err


def test_values_far_apart_have_a_logarithmic_axis_too() -> None:
    far = Series(name="grad_norm", points=tuple((float(x), 10.0 ** (x % 4 - 1)) for x in range(9)))
    drawn = chart("Gradient norm", [far])
    assert re.findall(r'class="ax" x="\d+" y="([\d.]+)">([^<]*)<', drawn.log) == [
        (y, label) for y, label in zip(equal(drawn.log), ("0.1", "1", "10", "100"), strict=True)
    ]
    for flat in ((1.0, 2.0), (0.0, 50.0), (-1.0, 100.0)):
        points = tuple((float(x), y) for x, y in enumerate(flat))
        assert chart("x", [Series(name="x", points=points)]).log == ""


def equal(svg: str) -> list[str]:
    """The heights of the labels of a y axis, which must be equally far apart."""
    found = re.findall(r'class="ax" x="\d+" y="([\d.]+)"', svg)
    gaps = [float(a) - float(b) for a, b in pairwise(found)]
    assert max(gaps) - min(gaps) < 0.21, gaps
    return found


def test_report_without_rewards_leads_with_the_loss(tmp_path: Path) -> None:
    job = make_job(steps=30, rewards=False)
    run_folder(tmp_path, job)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    nulls = dict.fromkeys(("reward_mean", "reward_std", "age_max", "age_mean"))
    bare = [json.dumps(row | nulls) + "\n" for row in rows]
    (tmp_path / "metrics.jsonl").write_text("".join(bare))
    charts = re.findall(r"<h3>(.*?)</h3>", write_report(tmp_path).read_text())
    assert charts[0] == "Loss"
    assert "Reward" not in charts
    assert "Policy age" not in charts


def test_report_does_not_change_when_made_again(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(steps=20))
    first = write_report(tmp_path).read_bytes()
    assert write_report(tmp_path).read_bytes() == first


def test_summary_has_before_and_after_and_where(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job())
    write_report(tmp_path)
    text = summary(tmp_path, 0)
    assert text.startswith("example (profile cpu) finished: 120 steps in")
    assert "reward       0.633 -> 0.903   (first and last 20 steps)" in text
    assert "held_out     0.530 -> 0.888   (step 0 and 100)" in text
    assert f"report       {tmp_path / 'report.html'}" in text


def test_summary_says_where_the_export_lies_or_how_to_make_it(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(), steps=5)
    (tmp_path / "checkpoints/step-5").mkdir(parents=True)
    (tmp_path / "checkpoints/step-5/controller.json").write_text("{}")
    assert f"export       forgec export {tmp_path}   (" in summary(tmp_path, 0)
    (tmp_path / "exports/step-2").mkdir(parents=True)  # while it was still going
    assert f"export       forgec export {tmp_path}   (" in summary(tmp_path, 0)
    (tmp_path / "exports/step-5").mkdir(parents=True)
    assert f"export       {tmp_path / 'exports/step-5'}\n" in summary(tmp_path, 0) + "\n"


def test_no_export_is_offered_of_weights_that_were_not_trained(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(), steps=0)
    (tmp_path / "checkpoints/step-0").mkdir(parents=True)
    (tmp_path / "checkpoints/step-0/controller.json").write_text("{}")
    assert "forgec export" not in summary(tmp_path, 6)


def test_summary_says_what_was_dropped_and_why(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(), steps=5)
    reasons = ("reward correct", "filter mixed", "filter mixed")
    lost = [{"time": 1e9, "kind": "group.dropped", "reason": reason} for reason in reasons]
    events = (tmp_path / "events.jsonl").read_text()
    kept = [line for line in events.splitlines() if "group.dropped" not in line]
    lines = [*kept[:-1], *map(json.dumps, lost), kept[-1], ""]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert "  dropped      3 groups: filter mixed 2, reward correct 1\n" in summary(tmp_path, 0)
    (tmp_path / "events.jsonl").write_text("\n".join([*kept, ""]))
    assert "dropped" not in summary(tmp_path, 0)


def test_summary_of_a_failure_names_cause_and_place(tmp_path: Path) -> None:
    run_folder(tmp_path, make_job(), steps=5)
    end = {"time": 2e9, "kind": "run.end", "code": 5, "status": "failed",
           "message": "service generator failed: process died", "origin": "x.forge:39:1",
           "remedy": "see the log"}  # fmt: skip
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps(end) + "\n")
    text = summary(tmp_path, 5)
    assert "example (profile cpu) failed: 5 steps" in text
    assert "service generator failed: process died" in text
    assert "x.forge:39:1" in text
    (tmp_path / "checkpoints/step-0").mkdir(parents=True)
    assert "checkpoints " not in summary(tmp_path, 5)  # there is nothing to go on from


def test_a_checkpoint_that_cannot_be_read_is_nothing_to_continue_from(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    run.mkdir()
    run_folder(run, make_job(), steps=5)
    (run / "checkpoints/step-5").mkdir(parents=True)
    (run / "checkpoints/step-5/controller.json").write_text("{}")
    assert f"forgec export '{run}'   (" in summary(run, 4)
    assert "--resume" in summary(run, 4)
    end = {"time": 2e9, "kind": "run.end", "code": 4, "status": "not launched",
           "message": "the checkpoint of step 5 cannot be read: it is cut"}  # fmt: skip
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(end) + "\n")
    assert "--resume" not in summary(run, 4)


def test_overlap_counts_steps_during_which_something_was_sampled(tmp_path: Path) -> None:
    events = [
        {"time": 0.0, "kind": "sample.start", "id": 1},
        {"time": 2.0, "kind": "sample.end", "id": 1},
        {"time": 1.0, "kind": "step.start", "id": 2, "step": 1},
        {"time": 3.0, "kind": "step.end", "id": 2, "step": 1},
        {"time": 4.0, "kind": "step.start", "id": 3, "step": 2},
        {"time": 5.0, "kind": "step.end", "id": 3, "step": 2},
    ]  # fmt: skip
    (tmp_path / "job.json").write_text(make_job().model_dump_json())
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    assert overlap(load_run(tmp_path)) == 0.5


def test_long_curves_are_thinned_without_losing_their_mean() -> None:
    points = tuple((float(i), float(i % 7)) for i in range(5000))
    few = thin(Series(name="x", points=points)).points
    assert len(few) == 400
    assert sum(y for _, y in few) / 400 == pytest.approx(sum(y for _, y in points) / 5000, abs=0.01)
    assert few[-1][0] == 4999.0


def test_trend_of_a_straight_line_does_not_lag() -> None:
    line = [(float(i), 2.0 * i) for i in range(200)]
    assert trend(line)[100] == (100.0, pytest.approx(200.0))


def test_a_constant_curve_can_be_drawn() -> None:
    drawn = chart("flat", [Series(name="x", points=((1, 0.5), (2, 0.5)))])
    assert ET.fromstring(drawn.svg).get("aria-label") == "flat: x from 0.500 to 0.500"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3e-4, 5e-4), (0, 123456), (0.98, 1.01)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high, 4)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in found)


def test_no_box_of_the_topology_overlaps_another() -> None:
    nodes = tuple(node for node in make_job().nodes if node.op != "sync")
    boxes = [p for p in place(nodes).places.values() if p.node]
    pairs = [(a, b) for a in boxes for b in boxes if a is not b and a.x == b.x]
    assert pairs
    assert all(abs(a.y - b.y) >= 54 for a, b in pairs)


def test_topology_names_the_weight_sync() -> None:
    assert "sync trainer \u2192 generator, every 1" in topology_svg(make_job())
