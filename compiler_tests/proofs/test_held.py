"""Digests of what an engine holds: the places of its weights are found once, and again after they
have moved."""

from __future__ import annotations

import torch
from torch import nn

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
