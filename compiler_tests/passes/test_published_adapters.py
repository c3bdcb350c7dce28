"""`weights = adapter` of a sync: who can have it, what the job says of it, and what is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forge_texts import GRPO, changed, edited, lower_of, plan_of

from forgedsl.plan.cost import published_bytes
from forgedsl.sizes.adapters import GPU_LAYER, added_seconds
from forgedsl.sizes.hosts import Host
from forgedsl.sizes.params import SLOT_RANKS, adapter_params, adapter_slot_rank, num_params

SYNC = "sync trainer -> generator { every = 1 }"
ALONE = (SYNC, "sync trainer -> generator { weights = adapter }")
LORA = ("procs = 4, optimizer.lr = 1e-6,", "procs = 4, optimizer.lr = 1e-4, lora.rank = 12,")
TEXT = changed(GRPO, LORA, ALONE)
MODEL = 'source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B")'
ON_CPU = (
    "service generator : vllm(policy) { replicas = 2, parallel.tp = 2,",
    "service generator : vllm(policy) { device = cpu,",
)
MOE = (
    "arch = qwen3_moe(layers = 2, hidden = 64, heads = 2, kv_heads = 1, head_dim = 32, ffn = 32, "
    "vocab = 512, experts = 8, active = 2)"
)
BIG = Host(gpus=16, gpu_memory=80 * 2**30, cpus=64, memory=2**40)
PHI = 'source = hf("microsoft/phi-4"), arch = phi3("14B")'
TWO = (
    SYNC,
    "sync trainer -> generator { weights = adapter }\n  sync trainer -> other { every = 1 }",
)


def faults(folder: Path, text: str, *edits: tuple[str, str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = edited(text, *edits, folder=folder, host=BIG)[1]
    return found


def test_a_trainer_without_an_adapter_is_told(tmp_path: Path) -> None:
    assert faults(tmp_path, GRPO, ALONE) == [
        ("F113", "`weights = adapter` has no effect: `trainer` has no `lora`")
    ]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("parallel.tp = 2,", "parallel.tp = 2, engine.weight_dtype = fp8,"),
         "together with `engine.weight_dtype = fp8` of `generator`"),
        (("lora.rank = 12", "lora.rank = 513"), "together with `lora.rank = 513`"),
        ((MODEL, MODEL.replace('hf("Qwen/Qwen3-1.7B")', "random(3)")
          + ', tokenizer = local("forgedsl:tokenizers/arithmetic")'),
         "together with random weights of `policy`"),
        ((MODEL, PHI), "together with the family phi3"),
        ((MODEL, f'source = hf("me/m"), {MOE}'), "together with the experts of `policy`"),
        (("lora.rank = 12,", "lora.rank = 12, optimizer.precision = bf16,"), ""),
        (("parallel.tp = 2,", "parallel.tp = 2, dtype = f16,"), ""),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told(tmp_path: Path, edit: tuple[str, str], message: str) -> None:
    found = faults(tmp_path, TEXT, edit)
    if not message:
        assert found == []
        return
    ((code, said),) = found
    assert code == "P216"
    assert message in said


def test_a_base_that_is_rounded_apart_is_told(tmp_path: Path) -> None:
    edits = (
        ("lora.rank = 12,", "lora.rank = 12, optimizer.precision = bf16,"),
        ("parallel.tp = 2,", "parallel.tp = 2, dtype = f16,"),
    )
    ((code, said),) = faults(tmp_path, TEXT, *edits)
    assert (code, "`trainer` stores in bf16 and `generator` in f16" in said) == ("P216", True)


def test_a_job_names_the_rank_at_both_ends(tmp_path: Path) -> None:
    made, _ = lower_of(TEXT, "cluster.gpus=16", folder=tmp_path)
    job = made.job
    (sync,) = (node for node in job.nodes if node.op == "sync")
    assert (sync.weights, job.services["generator"].adapter_rank) == ("adapter", 12)
    assert job.services["trainer"].lora.rank == 12


def test_a_job_without_it_is_what_it_was(tmp_path: Path) -> None:
    made, _ = lower_of(changed(GRPO, LORA), "cluster.gpus=16", folder=tmp_path)
    assert '"adapter_rank"' not in made.job.model_dump_json()
    assert '"weights"' not in made.job.model_dump_json()


def test_a_sync_sends_the_bytes_of_the_adapter() -> None:
    plans = [plan_of(text, host=BIG)[0] for text in (changed(GRPO, LORA), TEXT)]
    dims = plans[0].dims["policy"]
    sizes = []
    for made in plans:
        (sync,) = made.request.syncs
        sizes.append(published_bytes(made.request, sync))
    assert sizes == [2 * num_params(dims), 2 * adapter_params(dims, 12)]
    stages = [next(s for s in made.cost.stages if s.node == "sync") for made in plans]
    assert stages[1].bytes < stages[0].bytes / 50
    assert stages[1].seconds < stages[0].seconds
    assert "the adapter alone" in stages[1].detail


def items(made: Any, service: str, phase: str) -> dict[str, int]:
    found = next(p for p in made.memory.rank(service).phases if p.name == phase)
    return {item.name: item.bytes for item in found.items}


def test_memory_counts_the_adapter_in_place_of_the_weights() -> None:
    whole, alone = (plan_of(text, host=BIG)[0] for text in (changed(GRPO, LORA), TEXT))
    dims = whole.dims["policy"]
    assert "reload staging" in items(whole, "generator", "sync")
    engine = items(alone, "generator", "sync")
    assert "reload staging" not in engine
    assert engine["received adapter"] == 2 * adapter_params(dims, 12)
    room = adapter_params(dims, 16) / 2  # vLLM has room for rank 16, split over two ranks
    assert engine["adapter"] == 2 * (room + adapter_params(dims, 12))
    assert "merged weights f32" in items(whole, "trainer", "sync")
    assert items(alone, "trainer", "sync")["gathered adapter"] == 4 * adapter_params(dims, 12)
    sent = [items(made, "trainer", "rollout")["published weights"] for made in (whole, alone)]
    assert sent == [2 * 2 * num_params(dims) / 4, 2 * 2 * adapter_params(dims, 12) / 4]
    assert alone.memory.rank("generator").note == "decodes slower, because it adds an adapter"


def test_decoding_with_an_adapter_takes_longer() -> None:
    whole, alone = (
        next(stage for stage in plan_of(text, host=BIG)[0].cost.stages if stage.node == "rollout")
        for text in (changed(GRPO, LORA), TEXT)
    )
    dims = plan_of(TEXT, host=BIG)[0].dims["policy"]
    step = added_seconds(dims, 12, width=1, device="gpu")
    assert step == dims.layers * GPU_LAYER
    assert alone.seconds - whole.seconds == pytest.approx(512 * step), "512 tokens at most"


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_the_base_alone_decodes_as_fast(device: str) -> None:
    dims = plan_of(TEXT, host=BIG)[0].dims["policy"]
    assert added_seconds(dims, 0, width=64, device=device) == 0.0
    assert added_seconds(dims, 8, width=64, device=device) > 0.0


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (2, 8), (8, 8), (33, 64), (512, 512), (513, 0)])
def test_the_room_that_vllm_has(rank: int, room: int) -> None:
    assert adapter_slot_rank(rank) == room


def test_the_ranks_are_those_of_vllm() -> None:
    vllm = pytest.importorskip("importlib.util").find_spec("vllm")
    if vllm is None or vllm.origin is None:
        pytest.skip("vllm is not installed")
    text = (Path(vllm.origin).parent / "config/lora.py").read_text("utf-8")
    assert f"MaxLoRARanks = Literal{list(SLOT_RANKS)}" in text
