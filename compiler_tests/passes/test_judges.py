"""Judges in the language: what is accepted, what they become in jobs and plans, what is refused."""

from pathlib import Path
from typing import Any

import pytest
from forge_texts import GRPO, changed, job_of, loaded, plan_of

from forgedsl.graph.dataflow import build
from forgedsl.plan.alternatives import alternatives, render
from forgedsl.sizes.hosts import Host

PROMPT = "{prompt} {response} {row.topic} 1 to 5:"
ASKED = f'judge.score(prompt = "{PROMPT}", scale = [1, 5])'
TEXT = changed(
    GRPO,
    ("service reference", "service judge : vllm(grader) { device = cpu }\nservice reference"),
    ("dataset gsm8k", 'model grader { source = hf("Qwen/Qwen3-0.6B"), arch = qwen3("0.6B"), '
     "context = 2048 }\ndataset gsm8k"),
    ("rubric total { score = correct", f"reward style = {ASKED} {{ cache = true }}\n"
     "rubric total { score = correct + style"),
)  # fmt: skip
REMOTE = changed(
    TEXT,
    ("judge : vllm(grader) { device = cpu }", 'judge : openai("m") {\n'
     '  url = "http://127.0.0.1:8000/v1", key = "JUDGE_KEY"\n}'),
    ("{ cache = true }", "{ cache = true, effects = [net], timeout = 5s, retries = 2 }"),
)  # fmt: skip


def lowered(folder: Path, text: str, *edits: tuple[str, str]) -> tuple[Any, list[tuple[str, str]]]:
    """(job or None, errors as (code, message))."""
    job, found = job_of(text, *edits, folder=folder)
    return job, [(d.code, d.message) for d in found if d.severity == "error"]


def test_a_judge_of_the_run_is_a_service_of_the_job(tmp_path: Path) -> None:
    job, _ = lowered(tmp_path, TEXT)
    style = job.rewards["style"]
    assert job.services["judge"].model == "grader"
    assert (style.kind, style.service, style.cache) == ("judge", "judge", True)
    holes = {"prompt": "messages", "response": "response", "row.topic": "column topic"}
    assert style.inputs == holes
    assert (style.args["scale"], style.args["range"]) == ([1, 5], [0.0, 1.0])


def test_an_endpoint_is_no_service_of_the_job_and_its_key_is_a_name(tmp_path: Path) -> None:
    job, _ = lowered(tmp_path, REMOTE)
    style = job.rewards["style"]
    assert "judge" not in job.services
    assert (style.kind, style.args["model"], style.args["key"]) == ("endpoint", "m", "JUDGE_KEY")
    assert (style.args["retries"], style.retries, style.timeout) == (2, 0, 2 * 3 * (5.0 + 8.0))


def test_the_plan_counts_what_a_judge_reads_and_holds() -> None:
    plan, _ = plan_of(TEXT)
    stage = next(stage for stage in plan.cost.stages if stage.service == "judge")
    assert (stage.node, stage.tokens) == ("style", 16 * 8 * (512 + 1024 + len(PROMPT) // 4))
    assert plan.memory.rank("judge") is not None


WRONG = [
    ("{response}", "{respons}", "F101", "the judge's prompt cannot have the placeholder `respons`"),
    ("{response}", "it", "F113", ("the judge's prompt does not show the answer: it has no "
                                  "placeholder `{response}`")),
    ("{response}", "{response:>8}", "F113", "`{response}` cannot have a format"),
    ("{response}", "{response", "F113", "the judge's prompt is not a valid template"),
    ("[1, 5]", "[5, 1]", "F113", "a scale must go up"),
    ("[1, 5]", "[0, 10]", "F113", "a grade must be one token, 0 to 9"),
    ("[1, 5])", "[1, 5], range = [1.0, 0.0])", "F113", "a range must go up"),
    ("judge.score(", "judge.sample(", "F119", "a reward calls a judge"),
    ("judge.score(", "trainer.score(", "F119", "`trainer` has no value head"),
    ("score   = total(rollout, prompt.target)", "score = judge.score(rollout)", "F119",
     "`judge.score` is a reward that is not declared"),
    ("vllm(grader)", 'vllm("m")', "F119", "titan(MODEL)"),
    ("{ every = 1 }", "\n  sync trainer -> judge", "F108",
     "`judge` is the judge of `style`, so its grades would change with the policy"),
    ("context = 2048", "context = 1024", "D605", "the judge's prompt of `style` has up to"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code", "message"), WRONG)
def test_a_wrong_judge_is_told(tmp_path: Path, old: str, new: str, code: str, message: str) -> None:
    found = lowered(tmp_path, TEXT, (old, new))[1]
    assert [c for c, m in found if message in m] == [code], found


def test_a_remote_judge_takes_the_name_of_its_model(tmp_path: Path) -> None:
    found = lowered(tmp_path, REMOTE, ('openai("m")', "openai(grader)"))[1]
    assert found[0] == (
        "F119",
        'a service needs a backend: `service NAME : openai("MODEL") { ... }`',
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"JUDGE_KEY"', '"sk-proj-4711"', "`key` must be the name of an environment variable"),
        ("http://127", "127", "`url` must begin with http:// or https://"),
    ],
)
def test_a_key_or_an_address_that_is_none_is_told(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    ((code, said),) = lowered(tmp_path, REMOTE, (old, new))[1]
    assert (code, said.startswith(message)) == ("F113", True)


def test_a_prompt_with_a_target_needs_one(tmp_path: Path) -> None:
    edits = [("{row.topic}", "{target}"), ("score = correct + style", "score = style"),
             ("total(rollout, prompt.target)", "total(rollout)")]  # fmt: skip
    assert lowered(tmp_path, TEXT, *edits)[1] == [
        ("F114", "`total` needs a target, because `style` compares the response with it")
    ]


def test_placements_with_a_judge_are_compared() -> None:
    edits = [("{ device = cpu }\nservice reference", "\nservice reference"),
             ("replicas = 2, parallel.tp = 2, ", ""), ("procs = 4, ", "")]  # fmt: skip
    host = Host(gpus=2, cpus=64, gpu="H200", memory=1 << 40)
    found = loaded(changed(TEXT, *edits), host=host)
    graph = build(found.program, reporter=found.reporter)
    page = render(alternatives(found.program, graph, None, host=host, base_dir=None))
    assert "colocate=[trainer, judge]" in page
