"""`served_by` of a frozen titan service: who can have it, what the job says, what is planned."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from forge_texts import GRPO, changed, edited, lower_of, plan_of
from test_every_setting import PAIRS
from test_model_adapter import written

from forgedsl.adapters import PREFIX, A, B
from forgedsl.lower.job import Job
from forgedsl.plan.text import placement_lines
from forgedsl.plan.timeline import timeline
from forgedsl.records import replace
from forgedsl.sizes.hosts import Host

MODEL = 'model policy { source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B"), context = 4096 }'
FROZEN = MODEL.replace("policy", "frozen")
APART = "service reference : titan(policy) { }"
SERVED = "service reference : titan(policy) { served_by = trainer }"
GIVEN = "service reference : titan(policy) { device = cpu, procs = 2 }"
LORA = ("procs = 4, optimizer.lr = 1e-6,", "procs = 4, optimizer.lr = 1e-4, lora.rank = 12,")
TEXT = changed(GRPO, LORA, (GIVEN, SERVED))
OTHER = ((MODEL, f"{MODEL}\n{FROZEN}"), ("titan(policy) { served_by", "titan(frozen) { served_by"))
BIG = Host(gpus=16, gpu_memory=80 * 2**30, cpus=64, memory=2**40)


def told(folder: Path, *edits: tuple[str, str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = edited(TEXT, *edits, folder=folder, host=BIG)[1]
    return found


def test_a_reference_is_served_by_the_trainer(tmp_path: Path) -> None:
    made, found = lower_of(TEXT, "reference.temperature=0.7", folder=tmp_path)
    assert [d.message for d in found if d.severity == "error"] == []
    job = made.job
    assert Job.model_validate_json(job.model_dump_json()) == job
    trainer, reference = job.trainers["trainer"], job.trainers["reference"]
    assert (reference.served_by, reference.temperature) == ("trainer", 0.7)
    assert (trainer.served_by, trainer.temperature) == (None, 1.0)
    assert (reference.mesh, reference.batch) == (trainer.mesh, trainer.batch)
    assert (reference.trained, reference.lora) == (False, None)
    assert job.tenants("trainer") == ("reference",)
    assert "reference" not in job.with_processes
    assert job.own_adapter("reference") is None


def test_a_job_without_it_is_what_it_was(tmp_path: Path) -> None:
    made, _ = lower_of(changed(GRPO, LORA), folder=tmp_path)
    assert "served_by" not in made.job.model_dump_json()


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([(LORA[1], LORA[0])], "it trains the weights themselves, so its first step changes the "
         "base"),
        ([("served_by = trainer", "served_by = reference")], "that is the service itself"),
        ([("served_by = trainer", "served_by = generator")], "it is a vllm service"),
        ([(LORA[1], f"{LORA[1]} served_by = reference,"), (SERVED, APART)],
         "the flow trains `trainer`"),
        ([*OTHER, (FROZEN, FROZEN.replace("1.7B", "1.7B-Base", 1))],
         "`frozen` has another `source` than `policy`, which `trainer` has loaded"),
        ([*OTHER, (FROZEN, FROZEN.replace('1.7B")', '1.7B", revision = "abc")', 1))],
         "`frozen` has another `source` than `policy`"),
        ([*OTHER, (FROZEN, FROZEN.replace(" }", ", dtype = f32 }"))],
         "`frozen` has another `dtype`"),
        ([*OTHER, (FROZEN, FROZEN.replace("4096", "2048"))], "`frozen` has another `context`"),
        ([*OTHER, (FROZEN, FROZEN.replace(" }", ', adapter = hf("a/b") }'))],
         "the weights of `trainer` lack the adapter of `frozen`"),
        ([*OTHER, (f"{MODEL}\n", MODEL.replace(" }", ', adapter = hf("a/b") }') + "\n")],
         "the adapter of `policy` is merged into the weights of `trainer`"),
        ([("titan(policy) { served_by", "titan(value_head(policy)) { served_by"),
          ("reference.logprobs", "reference.values")],
         "`reference` has a value head, and `trainer` computes only its log-probs"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_told(tmp_path: Path, edits: Any, message: str) -> None:
    ((code, said),) = told(tmp_path, *edits)
    assert code == "P230"
    assert "cannot be served by" in said
    assert message in said


SECOND = (
    (SERVED, f"{SERVED}\nservice second : titan(policy) {{ SETTINGS }}"),
    ("  batch   =", "  more    = second.logprobs(rollout)\n  batch   ="),
    ("ref = ref_lp,", "ref = ref_lp, other = more,"),
    ("ref: [B, T] f32,", "ref: [B, T] f32, other: [B, T] f32,"),
    ("rl.k3(logprob, ref)", "rl.k3(logprob, ref + other)"),
)


def second(settings: str) -> list[tuple[str, str]]:
    return [(old, new.replace("SETTINGS", settings)) for old, new in SECOND]


@pytest.mark.parametrize(
    ("settings", "first", "message"),
    [("served_by = reference", SERVED, "it has no processes, but is served by `trainer`"),
     ("served_by = reference", APART, "the flow does not train it, so it has no adapters")],
)  # fmt: skip
def test_a_frozen_service_serves_no_other(
    tmp_path: Path, settings: str, first: str, message: str
) -> None:
    ((code, said),) = told(tmp_path, *second(settings), (SERVED, first))
    assert (code, message in said) == ("P230", True)
    assert said.startswith("`second` cannot be served by `reference`")


def test_the_same_adapter_in_both_is_the_base(tmp_path: Path) -> None:
    query = PREFIX + "model.layers.0.self_attn.q_proj"
    written(tmp_path / "adapter", {query + A: (4, 2048), query + B: (2048, 4)}, r=4)
    added = (" }", ', adapter = local("adapter") }')
    models = f"{MODEL.replace(*added)}\n{FROZEN.replace(*added)}"
    made, _ = lower_of(changed(TEXT, OTHER[1], (MODEL, models)), folder=tmp_path)
    assert made.job.models["policy"].adapter is not None
    assert made.job.own_adapter("reference") is None


@pytest.mark.parametrize(
    "setting", ["device = gpu", "procs = 2", "hosts = 2", "parallel { tp = 2 }", "dtype = f32",
                "batch { rows = 2 }", "lora { rank = 4 }", "memory { offload = true }",
                "compile = true", "cpus = 2"],
)  # fmt: skip
def test_settings_that_the_trainer_decides_are_told(tmp_path: Path, setting: str) -> None:
    found = told(tmp_path, ("served_by = trainer", f"served_by = trainer, {setting}"))
    assert {code for code, _ in found} == {"F113"}
    assert "of `reference` has no effect: `trainer` serves it" in found[0][1]


def test_a_reference_that_shares_gpus_is_told(tmp_path: Path) -> None:
    found = told(tmp_path, ("flow train", "colocate = [reference, trainer]\nflow train"))
    assert found == [
        ("F113", "`reference` in `colocate` has no effect: it has no device of its own, because "
         "`trainer` serves it")
    ]  # fmt: skip


def test_a_sync_into_it_is_told(tmp_path: Path) -> None:
    sync = "sync trainer -> generator { every = 1 }"
    ((code, said),) = told(tmp_path, (sync, f"{sync}\n  sync trainer -> reference"))
    assert (code, said) == ("F108", "`reference` is a titan service, which is frozen")


def test_memory_has_the_base_once() -> None:
    own, served = (plan_of(text, host=BIG)[0] for text in (changed(TEXT, (SERVED, APART)), TEXT))
    assert own.memory.rank("reference") is not None
    assert served.memory.rank("reference") is None
    assert served.memory.rank("trainer") == own.memory.rank("trainer")
    used = [sum(store.count for store in made.memory.stores if store.kind == "gpu")
            for made in (own, served)]  # fmt: skip
    assert used == [9, 8]
    assert served.chosen == {}
    assert "reference  served by trainer" in "\n".join(placement_lines(served))


@pytest.mark.parametrize(
    ("gib", "lora", "suggested"), [(47, LORA[1], True), (51, LORA[1], True), (47, LORA[0], False)]
)
def test_a_second_base_that_does_not_fit_is_told(gib: int, lora: str, suggested: bool) -> None:
    """On one GPU there is room for the trainer alone; with trained weights nothing else helps."""
    text = changed(
        TEXT, (SERVED, APART), (LORA[1], lora), ("procs = 4,", "procs = 1,"),
        ("rows = 4", "rows = 1"),
        ("flow train", "colocate = [trainer, reference]\nflow train"),
    )  # fmt: skip
    _, found = plan_of(text, host=replace(BIG, gpu_memory=gib * 2**30))
    (small,) = [d for d in found if "`trainer` and `reference` together" in d.message]
    assert small.code == "P205"
    remedy = "`service reference : titan(policy) { served_by = trainer }` fits"
    assert (remedy in (small.help or "")) == suggested


def test_its_time_is_that_of_the_trainer() -> None:
    own, served = (
        plan_of(changed(TEXT, (SERVED, text)), host=BIG)[0]
        for text in ("service reference : titan(policy) { procs = 4, batch { rows = 4 } }", SERVED)
    )
    before, stages = ({s.node: s for s in made.cost.stages} for made in (own, served))
    assert stages["ref_lp"].service == "reference"
    assert stages["ref_lp"].seconds == before["ref_lp"].seconds
    assert stages["step"].seconds == before["step"].seconds
    assert served.cost.lane("reference") == "trainer"
    lanes = served.cost._lanes()
    assert lanes["trainer"] == pytest.approx(stages["ref_lp"].seconds + stages["step"].seconds)
    assert "reference" not in lanes


def test_the_trainer_does_one_at_a_time(tmp_path: Path) -> None:
    made, _ = edited(TEXT, folder=tmp_path, host=BIG)
    bars = [bar for bar in timeline(made.graph, made.plan) if bar.lane == "trainer"]
    assert {bar.node for bar in bars} == {"ref_lp", "step"}
    bars.sort(key=lambda bar: bar.start)
    assert all(a.end <= b.start for a, b in pairwise(bars))


def test_auto_places_the_trainer_alone(tmp_path: Path) -> None:
    """The search counts the time of both, and has no place for the reference."""
    edits = (("procs = 4, optimizer", "procs = auto, batch.rows = auto, optimizer"),
             (", batch { seq_len = 4096, rows = 4 }", ", batch { seq_len = 4096 }"))  # fmt: skip
    texts = [changed(TEXT, *edits), changed(TEXT, *edits, (SERVED, APART))]
    served, own = (plan_of(text, host=BIG)[0] for text in texts)
    assert {key.partition(".")[0] for key in served.chosen} == {"trainer"}
    assert [mesh.service for mesh in served.meshes] == ["trainer", "generator"]
    assert served.rows.keys() == {"trainer"}
    assert served.mesh("reference") == served.mesh("trainer")
    assert own.mesh("reference") != own.mesh("trainer")


def test_pairs_have_a_reference_by_their_trainer(tmp_path: Path) -> None:
    edits = (("titan(base) { batch", "titan(base) { lora { rank = 8 }, batch"),
             ("titan(base) { }", "titan(base) { served_by = trainer }"))  # fmt: skip
    made, _ = lower_of(changed(PAIRS, *edits), folder=tmp_path)
    assert made.job.tenants("trainer") == ("reference",)
