"""Digests of what an engine holds: the places of its weights are found once, and again after they
have moved. Published tensors are copied to these places."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from forgedsl_runtime.proofs.digest import digest, unsigned
from forgedsl_runtime.services.vllm.upstream.held import HeldWeights


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3, bias=False))


def test_places_found_once_give_the_digests_of_new_weights() -> None:
    own = model()
    kept, found_anew = HeldWeights(own, in_place=True), HeldWeights(own, in_place=False)
    before = kept.take()
    with torch.no_grad():
        own[2].weight.add_(1.0)
    after = kept.take()
    assert after == found_anew.take()
    changed = [a.name for a, b in zip(before, after, strict=True) if a != b]
    assert changed == ["2.weight"]


def test_a_bias_that_an_engine_has_widened_is_compared_as_it_was_loaded() -> None:
    own = model().bfloat16()
    own[0].params_dtype = torch.bfloat16
    before = HeldWeights(own, in_place=False).take()
    own[0].bias.data = own[0].bias.data.float()
    assert HeldWeights(own, in_place=False).take() == before
    own[0].bias.data[3] += 1e-5  # no value of bf16
    changed = [
        a.name
        for a, b in zip(before, HeldWeights(own, in_place=False).take(), strict=True)
        if a != b
    ]
    assert changed == ["0.bias"]


def test_weights_that_have_moved_are_found() -> None:
    own = model()
    kept = HeldWeights(own, in_place=True)
    kept.take()
    old = own[0].weight.data
    own[0].weight.data = old + 1.0
    assert kept.take() == HeldWeights(own, in_place=False).take()


class QKVParallelLinear(nn.Linear):
    """As vLLM's layer of this name: q, k and v in one weight."""

    num_heads, num_kv_heads, head_size, v_head_size = 4, 2, 3, 3
    num_kv_head_replicas, tp_rank = 1, 0


class Engine(nn.Module):
    """A model with a fused weight, an embedding that is the head too, and one layer more."""

    packed_modules_mapping: ClassVar = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

    class config:
        tie_word_embeddings = True

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(6, 5)})
        self.attn = nn.ModuleDict({"qkv_proj": QKVParallelLinear(5, 24, bias=False)})
        self.norm = nn.LayerNorm(5, bias=False)
        self.lm_head = nn.Linear(5, 6, bias=False)
        self.lm_head.weight = self.model["embed_tokens"].weight


def published() -> dict[str, Tensor]:
    torch.manual_seed(2)
    shapes = {"attn.q_proj.weight": (12, 5), "attn.k_proj.weight": (6, 5),
              "attn.v_proj.weight": (6, 5), "norm.weight": (5,),
              "model.embed_tokens.weight": (6, 5)}  # fmt: skip
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def test_published_tensors_are_copied_to_their_places() -> None:
    own, new = Engine(), published()
    kept = HeldWeights(own, in_place=True)
    kept.take()
    assert list(kept.write(new.items())) == []
    fused = torch.cat([new[f"attn.{name}_proj.weight"] for name in "qkv"])
    assert own.attn["qkv_proj"].weight.equal(fused)
    assert own.norm.weight.equal(new["norm.weight"])
    assert own.lm_head.weight.equal(new["model.embed_tokens.weight"])
    digests = {each.name: each.value for each in kept.take()}
    assert digests == {name: unsigned(int(digest(value))) for name, value in new.items()}


def test_what_has_no_place_is_left_to_the_engine() -> None:
    own, new = Engine(), published()
    kept = HeldWeights(own, in_place=True)
    other = {"rotary.scale": torch.ones(2), "norm.weight": torch.ones(5)}
    own.norm.weight.data = torch.randn(10)[::2]  # not adjacent
    left = [name for name, _ in kept.write((new | other).items())]
    assert left == ["norm.weight", "rotary.scale"]
    assert not own.norm.weight.eq(1).any()


def test_a_bias_that_the_engine_has_widened_is_left_to_it() -> None:
    own = model().bfloat16()
    own[0].params_dtype = torch.bfloat16
    own[0].bias.data = own[0].bias.data.float()
    kept = HeldWeights(own, in_place=True)
    new = {"0.bias": torch.ones(7), "2.weight": torch.ones(3, 7)}
    assert [name for name, _ in kept.write(new.items())] == ["0.bias"]
    assert own[2].weight.eq(1).all()
