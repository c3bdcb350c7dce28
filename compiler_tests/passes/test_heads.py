"""P216: attention of some sizes of heads has no kernel on a CPU, and experts of some widths take no
published weights there."""

from __future__ import annotations

from pathlib import Path

import pytest
from forge_texts import GRPO, changed, lower_of

from forgedsl.services.registry import kind_of

HEADS = "arch = qwen3(layers = 2, hidden = 64, heads = 4, kv_heads = 2, head_dim = 16, vocab = 80)"
SMALL = changed(
    GRPO, ('source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B")', f"source = random(1), {HEADS}")
)


def told(text: str, folder: Path, *overrides: str) -> list[str]:
    return [d.message for d in lower_of(text, *overrides, folder=folder)[1] if d.code == "P216"]


def test_an_engine_on_a_cpu_is_refused_heads_of_sixteen(tmp_path: Path) -> None:
    (message,) = told(SMALL, tmp_path, "generator.device=cpu")
    assert message == (
        "the model of `generator` has `head_dim = 16`, which its engine does not support on a CPU"
    )


@pytest.mark.parametrize("edits", [(), ("generator.device=cpu", "generator.parallel.tp=1")])
def test_others_are_not(edits: tuple[str, ...], tmp_path: Path) -> None:
    text = changed(SMALL, ("head_dim = 16", "head_dim = 32")) if edits else SMALL
    assert told(text, tmp_path, *edits) == []


def test_the_sizes_are_those_of_vllm() -> None:
    pytest.importorskip("vllm")
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert list(kind_of("vllm").cpu_heads) == CPUAttentionBackend.get_supported_head_sizes()


MIXTURE = changed(
    SMALL,
    ("arch = qwen3(", "arch = glm4_moe("),
    ("head_dim = 16", "head_dim = 32, experts = 8, active = 2, ffn = 32"),
)


def test_experts_that_an_engine_pads_on_a_cpu_are_refused(tmp_path: Path) -> None:
    cpu = ("generator.device=cpu", "generator.parallel.tp=2", "generator.procs=2")
    (message,) = told(MIXTURE, tmp_path, *cpu)
    assert message == (
        "experts of the model of `generator` have a width of 32 / tp 2, into which its engine "
        "cannot load published weights on a CPU"
    )
    assert told(changed(MIXTURE, ("ffn = 32", "ffn = 64")), tmp_path, *cpu) == []
    assert told(MIXTURE, tmp_path, "generator.device=cpu", "generator.parallel.tp=1") == []
    assert told(MIXTURE, tmp_path, *cpu[1:]) == []


def test_the_width_is_that_of_vllm() -> None:
    pytest.importorskip("vllm")
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    unit = kind_of("vllm").cpu_expert_width
    kinds = (CPUUnquantizedExperts, *CPUUnquantizedExperts.__subclasses__())
    assert max(kind._intermediate_alignment() for kind in kinds) == unit


def test_experts_without_a_kernel_on_a_cpu_are_refused(tmp_path: Path) -> None:
    narrow = changed(MIXTURE, ("hidden = 64", "hidden = 48"))
    cpu = ("generator.device=cpu", "generator.parallel.tp=1")
    (message,) = told(narrow, tmp_path, *cpu)
    assert message == (
        "the model of `generator` has experts and `hidden = 48`, for which its engine has no "
        "kernel on a CPU"
    )
    assert told(narrow, tmp_path) == []
