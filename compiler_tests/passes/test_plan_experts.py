"""Experts over ranks in the plan: what divides, what is counted, what `auto` chooses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forge_texts import GRPO, changed, lower_of

from forgedsl.families import registry
from forgedsl.plan.router_replay import route_bytes
from forgedsl.plan.text import render_plan
from forgedsl.services.titan.facts import KIND
from forgedsl.services.titan.memory import TrainerShape
from forgedsl.sizes.experts import (
    exchanged,
    expert_seconds,
    fitting,
    gathered,
    gathered_tokens,
    mlp_bytes,
)
from forgedsl.sizes.meshes import MeshPlan
from forgedsl.sizes.params import vocab_params

HERE = Path(__file__).parent
DIMS = registry.family("qwen3_moe").sizes["30B-A3B"]
ROOMY = ("cluster.hosts=1", "cluster.gpus=16", 'cluster.gpu="H200"', "cluster.gpu_memory=141GiB")
MIXTURE = changed(GRPO, ('hf("Qwen/Qwen3-1.7B")', 'hf("Qwen/Qwen3-30B-A3B")'),
                  ('qwen3("1.7B")', 'qwen3_moe("30B-A3B")'))  # fmt: skip


def errors(text: str, *settings: str) -> list[tuple[str, str, str]]:
    found = lower_of(text, *ROOMY, *settings, folder=HERE)[1]
    return [(d.code, d.message, d.help) for d in found if d.code in ("P204", "F113")]


@pytest.mark.parametrize(
    ("settings", "message", "remedy"),
    [
        (["trainer.parallel.ep=3"], "ep = 3 does not divide the 4 ranks of `trainer` that share "
         "weights (dp_shard x cp x tp)", "set ep to one of 1, 2, 4"),
        (["trainer.procs=3"], "3 ranks of `trainer` (dp_shard x cp x tp) cannot evenly share "
         "the 128 experts of model `policy`", "use a number of ranks that divides 128; "
         "`parallel.dp_replicate` can use the other ranks"),
        (["trainer.parallel.ep=4"], None, None),
        (["trainer.parallel.dp_replicate=2", "trainer.parallel.ep=2"], None, None),
    ],
)  # fmt: skip
def test_ranks_get_as_many_experts_each(settings: list[str], message: Any, remedy: Any) -> None:
    expected = [("P204", message, remedy)] if message else []
    assert errors(MIXTURE, *settings) == expected


def test_an_engine_cuts_the_mlps_of_both_kinds_of_layers() -> None:
    sizes = "heads = 12, kv_heads = 1, head_dim = 32, vocab = 64, experts = 8, active = 2"
    arch = f"glm4_moe(layers = 2, hidden = 64, {sizes}, ffn = 32, dense_ffn = 98)"
    text = changed(GRPO, ('hf("Qwen/Qwen3-1.7B")', "random(1)"), ('qwen3("1.7B")', arch))
    (found,) = errors(text, "generator.parallel.tp=4", "generator.procs=4")
    assert found[1:] == (
        "tp = 4 does not divide 98 columns of an MLP in the first layers of model `policy`",
        "set tp to one of 1, 2",
    )


def test_a_dense_model_has_no_experts_to_share() -> None:
    found = errors(GRPO, "trainer.parallel.ep=2")
    assert found == [("F113", "`parallel.ep = 2` has no effect: model `policy` has no experts",
                      "remove it")]  # fmt: skip


def test_numbers_of_ranks_that_fit() -> None:
    assert fitting(DIMS, 8) == [1, 2, 4, 8]
    assert fitting(DIMS, 6) == []
    assert fitting(replace(DIMS, experts=4), 8) == [1, 2, 4]  # the width of experts is cut too


def test_bytes_of_a_published_mixture() -> None:
    each = 4 * 768 * 2 + 2048 * 4 + 28
    assert mlp_bytes(DIMS, 2) == 8 * each + 128 * 2
    assert exchanged(DIMS, 4096, 8, 2) == 4096 * 8 * 2048 * 2 * 7 // 8
    layer, experts = gathered(DIMS, 1), 3 * 2048 * 768 * 128
    assert gathered(DIMS, 8) == layer - experts + experts // 8


@pytest.mark.parametrize(("ep", "all_tokens"), [(1, False), (2, True), (7, True), (8, False)])
def test_few_ranks_gather_all_tokens(ep: int, all_tokens: bool) -> None:
    """Fewer than the 8 experts of a token; each way has as many bytes."""
    one = 4096 * 2048 * 2
    sent = (ep - 1) * one if all_tokens else one * 8 * (ep - 1) // ep
    assert exchanged(DIMS, 4096, ep, 2) == sent
    assert gathered_tokens(DIMS, 4096, ep, 2) == (ep * one if all_tokens else 0)
    assert exchanged(DIMS, 4096, ep, 2) <= one * 8 * (ep - 1) // ep


@pytest.mark.parametrize("trained", [True, False])
def test_gathered_tokens_are_in_the_memory_of_a_rank(trained: bool) -> None:
    found = {}
    for ep in (2, 8):
        degrees = {**dict.fromkeys(KIND.degrees, 1), "dp_shard": 8}
        shape = TrainerShape(
            dims=DIMS, device="gpu", degrees=degrees, itemsize=2, trained=trained,
            checkpointing="full" if trained else "none", seq_len=4096, rows=2, ep=ep, published=0,
        )  # fmt: skip
        items = [item for phase in shape.phases for item in phase.items]
        found[ep] = [i.bytes for i in items if i.name == "tokens for experts"]
    assert found == {2: [2 * 2 * 4096 * 2048 * 2], 8: []}


def test_a_rank_gathers_its_own_experts() -> None:
    shapes = [
        TrainerShape(
            dims=DIMS, device="gpu", degrees={**dict.fromkeys(KIND.degrees, 1), "dp_shard": 8},
            itemsize=2, trained=True, checkpointing="full", seq_len=4096, rows=1, ep=ep,
            published=0,
        )
        for ep in (1, 8)
    ]  # fmt: skip
    one, eight = ({i.name: i.bytes for i in shape.phases[-1].items} for shape in shapes)
    each = 3 * 2 + 4  # a gradient is reduced in f32
    assert one["gathered by FSDP"] == each * gathered(DIMS, 1)
    assert eight["gathered by FSDP"] == each * max(gathered(DIMS, 8), vocab_params(DIMS))
    assert one["weights f32"] == eight["weights f32"]


def test_the_plan_says_what_travels_to_experts() -> None:
    large = ("trainer.procs=8", "trainer.batch.rows=1", "trainer.memory.activation_checkpoint=full",
             "reference.device=cpu")  # fmt: skip
    lines = {}
    for ep in (1, 8):
        found, _ = lower_of(MIXTURE, *ROOMY, *large, f"trainer.parallel.ep={ep}", folder=HERE)
        assert found is not None
        program = found.plan.request.program
        text = render_plan(program, found.graph, found.plan, summary=("",), identity="")
        lines[ep] = [line for line in text.splitlines() if line.strip().startswith("experts:")]
        if ep == 8:
            (step,) = (stage for stage in found.plan.cost.stages if stage.exchanged)
            micros = int(step.detail.partition(" x ")[0])
            one_way = exchanged(DIMS, 4096, 8, 2)
            assert step.exchanged == micros * 3 * 2 * DIMS.layers * one_way
    assert lines[1] == []
    (line,) = lines[8]
    assert "a rank of trainer exchanges" in line


def test_ranks_that_share_experts_wait_in_each_layer() -> None:
    """A step of docs/benchmarks.md on two GPUs takes longer with `ep`, as it was measured."""
    dims = replace(DIMS, layers=24, experts=32, active=4)
    degrees = {**dict.fromkeys(KIND.degrees, 1), "dp_shard": 2}
    alone, shared = (
        MeshPlan(service="t", kind="titan", name="t", hosts=1, procs=2, gpus=1, cpus=None,
                 device="gpu", replicas=1, degrees=degrees, ep=ep)
        for ep in (1, 2)
    )  # fmt: skip
    one, two = (5 * expert_seconds(mesh, dims, 13 * 1280, 2, 3.0) for mesh in (alone, shared))
    assert one == pytest.approx(0.12, abs=0.01)  # experts are gathered
    assert two == pytest.approx(0.11 + 0.26, abs=0.01)  # tokens, and 240 times 1.1 ms


def test_auto_chooses_and_the_job_has_it() -> None:
    large = ("trainer.procs=8", "trainer.batch.rows=1", "trainer.memory.activation_checkpoint=full",
             "trainer.parallel.ep=auto", "reference.device=cpu")  # fmt: skip
    found, diagnostics = lower_of(MIXTURE, *ROOMY, *large, folder=HERE)
    assert found is not None, [d.message for d in diagnostics]
    assert found.job.chosen == {"trainer.parallel.ep": "8"}
    assert found.job.trainers["trainer"].parallel.ep == 8


# ---- router replay

PLACED = ("trainer.procs=8", "trainer.batch.rows=1", "trainer.memory.activation_checkpoint=full",
          "trainer.parallel.ep=8", "reference.device=cpu")  # fmt: skip


def routed(*settings: str) -> tuple[bool, bool]:
    """Whether trainer and generator of the mixture replay and record routes."""
    found, diagnostics = lower_of(MIXTURE, *ROOMY, *PLACED, *settings, folder=HERE)
    assert found is not None, [d.message for d in diagnostics]
    return of_job(found.job)


def of_job(job: Any) -> tuple[bool, bool]:
    return job.trainers["trainer"].router_replay, job.services["generator"].record_routes


def test_a_model_with_experts_replays_routes() -> None:
    assert routed() == (True, True)
    assert routed("trainer.router_replay=true") == (True, True)
    assert routed("trainer.router_replay=false") == (False, False)
    assert routed("trainer.parallel.pp=2", "trainer.parallel.ep=4") == (False, False)


def test_the_plan_says_what_routes_weigh() -> None:
    found, _ = lower_of(MIXTURE, *ROOMY, *PLACED, folder=HERE)
    assert found is not None
    program = found.plan.request.program
    text = render_plan(program, found.graph, found.plan, summary=("",), identity="")
    (line,) = [line for line in text.splitlines() if line.strip().startswith("routes:")]
    assert "384 B a token" in line
    assert route_bytes(DIMS) == 48 * 8


def test_a_dense_model_has_no_routes() -> None:
    found, _ = lower_of(GRPO, *ROOMY, folder=HERE)
    assert found is not None
    assert of_job(found.job) == (False, False)
    assert errors(GRPO, "trainer.router_replay=true") == [
        ("F113", "`router_replay` has no effect: model `policy` has no experts", "remove it")
    ]


def test_a_pipeline_replays_no_routes() -> None:
    piped = ("trainer.router_replay=true", "trainer.parallel.pp=2", "trainer.parallel.ep=4")
    found = lower_of(MIXTURE, *ROOMY, *PLACED, *piped, folder=HERE)[1]
    (refused,) = [d for d in found if d.code == "P216"]
    assert refused.message == (
        "`router_replay = true` of `trainer` is not supported together with `parallel.pp = 2`"
    )
