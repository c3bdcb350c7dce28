"""`served_by` of a vllm service: who can have it, what the job says, and what is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forge_texts import GRPO, changed, edited, lower_of, plan_of
from test_model_adapter import written

from forgedsl.adapters import PREFIX, A, B
from forgedsl.lower.job import Job
from forgedsl.plan.text import placement_lines
from forgedsl.plan.timeline import timeline
from forgedsl.sizes.hosts import Host
from forgedsl.sizes.params import adapter_params

SYNC = "sync trainer -> generator { every = 1 }"
MODEL = 'model policy { source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B"), context = 4096 }'
GRADER = MODEL.replace("policy", "grader")
SCORE = 'reward correct = judge.score(prompt = "{response} From 1 to 5:", scale = [1, 5])'
JUDGE = "service judge : vllm(grader) { served_by = generator }"
FEW = "sampling.max_tokens = 1024 }"
EDITS = (
    (SYNC, "sync trainer -> generator { weights = adapter }"),
    ("procs = 4, optimizer.lr = 1e-6,", "procs = 4, optimizer.lr = 1e-4, lora.rank = 12,"),
    ("reward correct = rl.math_equal(tolerance = 1e-6)", SCORE),
    ("service reference", f"{GRADER}\n{JUDGE}\nservice reference"),
)
TEXT = changed(GRPO, *EDITS)
ADAPTED = (GRADER, GRADER.replace(" }", ', adapter = local("adapter") }'))
BIG = Host(gpus=16, gpu_memory=80 * 2**30, cpus=64, memory=2**40)
SECOND = (
    (JUDGE, f"{JUDGE}\nservice second : vllm(grader) {{ served_by = generator, "
     "sampling { max_tokens = 100, temperature = 0.7 } }"),
    ("  trainer.step(batch, loss = grpo)",
     "  other   = second.sample(prompt, n = 2)\n  graded  = exact(other, prompt.target)\n"
     "  more    = replay(other, adv = rl.mean_baseline(graded))\n"
     "  trainer.step(batch, loss = grpo, more, loss = rl.dapo)"),
    ("rubric total", "reward exact = rl.exact\nrubric total"),
)  # fmt: skip
QUERY = "model.layers.0.self_attn.q_proj"


def adapter(folder: Path, layer: str = QUERY, rank: int = 20) -> None:
    """An adapter of one layer of Qwen3-1.7B."""
    shapes = {PREFIX + layer + A: (rank, 2048), PREFIX + layer + B: (2048, rank)}
    written(folder / "adapter", shapes, r=rank)


def told(folder: Path, *edits: tuple[str, str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = edited(TEXT, *edits, folder=folder, host=BIG)[1]
    return found


def test_a_judge_is_served_by_the_engine_of_the_policy(tmp_path: Path) -> None:
    made, found = lower_of(TEXT, "cluster.gpus=16", folder=tmp_path)
    assert [d.message for d in found if d.severity == "error"] == []
    job = made.job
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert job.samplers["judge"].served_by == "generator"
    assert job.samplers["judge"].mesh == job.samplers["generator"].mesh
    assert job.tenants("generator") == ("judge",)
    assert "judge" not in job.with_processes
    assert job.own_adapter("judge") is None
    assert job.services["judge"].adapter_rank is None


def test_a_job_without_it_is_what_it_was(tmp_path: Path) -> None:
    made, _ = lower_of(GRPO, "cluster.gpus=16", folder=tmp_path)
    assert "served_by" not in made.job.model_dump_json()


def test_an_adapter_of_its_own_is_not_merged(tmp_path: Path) -> None:
    adapter(tmp_path)
    made, _ = lower_of(changed(TEXT, ADAPTED), "cluster.gpus=16", folder=tmp_path)
    assert made.job.own_adapter("judge") == made.job.models["grader"].adapter


def test_the_same_adapter_in_both_is_the_base(tmp_path: Path) -> None:
    adapter(tmp_path)
    both = (MODEL, MODEL.replace(" }", ', adapter = local("adapter") }'))
    made, _ = lower_of(changed(TEXT, ADAPTED, both), "cluster.gpus=16", folder=tmp_path)
    assert made.job.models["policy"].adapter is not None
    assert made.job.own_adapter("judge") is None


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ((GRADER, GRADER.replace("Qwen3-1.7B", "Qwen3-1.7B-Base")),
         "`grader` has another `source` than `policy`"),
        ((GRADER, GRADER.replace("4096", "2048")), "`grader` has another `context`"),
        ((GRADER, GRADER.replace(" }", ', tokenizer = hf("a/b") }')), "another `tokenizer` than"),
        ((GRADER, GRADER.replace(" }", ", dtype = f32 }")), "`grader` has another `dtype`"),
        ((GRADER, GRADER.replace(" }", ", tool_calls = mistral }")), "another `tool_calls` than"),
        ((MODEL, MODEL.replace(" }", ', adapter = hf("a/b") }')),
         "the adapter of `policy` is merged"),
        ((" { weights = adapter }", ""), "its engine keeps the base model only if"),
        (("served_by = generator", "served_by = judge"), "that is the service itself"),
        (("served_by = generator", "served_by = trainer"), "it is a titan service"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_told(tmp_path: Path, edit: tuple[str, str], message: str) -> None:
    ((code, said),) = told(tmp_path, edit)
    assert code == "P230"
    assert "`judge` cannot be served by" in said
    assert message in said


def test_a_tenant_has_no_tenants(tmp_path: Path) -> None:
    more = "service more : vllm(grader) { served_by = judge }"
    both = SCORE + "\n" + SCORE.replace("correct = judge", "liked = more")
    edits = ((JUDGE, f"{JUDGE}\n{more}"), (SCORE, both), ("= correct, on", "= correct + liked, on"))
    assert told(tmp_path, *edits) == [
        ("P230", "`more` cannot be served by `judge`: it has no engine, but is served by "
         "`generator`")
    ]  # fmt: skip


def test_an_unknown_service_is_told(tmp_path: Path) -> None:
    ((code, said),) = told(tmp_path, ("served_by = generator", "served_by = generater"))
    assert (code, "generater" in said) == ("F101", True)


@pytest.mark.parametrize(
    ("layer", "rank", "message"),
    [("lm_head", 4, "the adapter changes `lm_head`"), (QUERY, 513, "the adapter has rank 513")],
)
def test_an_adapter_that_an_engine_cannot_add_is_told(
    tmp_path: Path, layer: str, rank: int, message: str
) -> None:
    adapter(tmp_path, layer, rank)
    ((code, said),) = told(tmp_path, ADAPTED)
    assert (code, message in said) == ("P230", True)


@pytest.mark.parametrize(
    "setting", ["device = gpu", "replicas = 2", "parallel { tp = 2 }", "route = sticky",
                "engine { max_running = 4 }", "dtype = f16", "cpus = 2"],
)  # fmt: skip
def test_settings_that_its_engine_decides_are_told(tmp_path: Path, setting: str) -> None:
    edit = ("served_by = generator", f"served_by = generator, {setting}")
    found = told(tmp_path, edit)
    assert {code for code, _ in found} == {"F113"}
    assert "of `judge` has no effect: the engine of `generator` serves it" in found[0][1]


def test_a_tenant_that_shares_gpus_is_told(tmp_path: Path) -> None:
    found = told(tmp_path, ("flow train", "colocate = [judge, trainer]\nflow train"))
    assert found == [
        ("F113", "`judge` in `colocate` has no effect: it has no device of its own, because "
         "`generator` serves it")
    ]  # fmt: skip


def test_a_sync_into_a_tenant_is_told(tmp_path: Path) -> None:
    own = "service other : vllm(policy) { served_by = generator, sampling { max_tokens = 4 } }"
    into = "sync trainer -> generator { weights = adapter }"
    ((code, said),) = told(tmp_path, (JUDGE, f"{JUDGE}\n{own}"),
                           (into, f"{into}\n  sync trainer -> other"))  # fmt: skip
    assert code == "F108"
    assert said == "`other` never changes: the engine of `generator` serves it"


def test_what_an_engine_with_an_adapter_refuses_is_told(tmp_path: Path) -> None:
    edit = ("parallel.tp = 2,", "parallel.tp = 2, engine.weight_dtype = fp8,")
    ((code, said),) = told(tmp_path, edit)
    assert (code, "`engine.weight_dtype = fp8` of `generator`" in said) == ("P216", True)


def items(made: Any, phase: str = "sync") -> dict[str, int]:
    found = next(p for p in made.memory.rank("generator").phases if p.name == phase)
    return {item.name: item.bytes for item in found.items}


def test_memory_has_the_base_once_and_a_slot_for_each_adapter(tmp_path: Path) -> None:
    adapter(tmp_path)
    alone = changed(TEXT, (JUDGE, "service judge : vllm(grader) { }"))
    texts = (alone, TEXT, changed(TEXT, ADAPTED))
    own, base, added = (plan_of(each, host=BIG, base_dir=tmp_path)[0] for each in texts)
    assert own.memory.rank("judge") is not None
    assert base.memory.rank("judge") is None
    used = [sum(store.count for store in made.memory.stores if store.kind == "gpu")
            for made in (own, base)]  # fmt: skip
    assert used == [9, 8]
    assert items(base)["adapter"] == items(own)["adapter"]
    dims = base.dims["policy"]
    slots = 2 * adapter_params(dims, 32) / 2  # rank 20 has room for 32, split over two ranks
    copies = adapter_params(dims, 12) + adapter_params(dims, 20)
    assert items(added)["adapters"] == 2 * (slots + copies)


def test_its_time_is_that_of_the_engine() -> None:
    made, _ = plan_of(TEXT, host=BIG)
    stages = {stage.node: stage for stage in made.cost.stages}
    assert stages["correct"].service == "judge"
    assert made.cost.lane("judge") == "generator"
    lanes = made.cost._lanes()
    assert lanes["generator"] == pytest.approx(
        sum(stages[name].seconds for name in ("rollout", "correct", "sync"))
    )
    assert "judge" not in lanes


def test_two_generators_of_one_engine_take_turns(tmp_path: Path) -> None:
    made, found = lower_of(changed(TEXT, *SECOND), "cluster.gpus=16", folder=tmp_path)
    assert [d.message for d in found if d.severity == "error"] == []
    assert {bar.lane for bar in timeline(made.graph, made.plan)} == {
        "trainer", "generator", "reference", "weights"
    }  # fmt: skip
    assert made.job.samplers["second"].sampling.temperature == 0.7
    assert "second     served by generator" in "\n".join(placement_lines(made.plan))
