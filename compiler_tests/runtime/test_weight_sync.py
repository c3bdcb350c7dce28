"""Weights go through shared memory unchanged, and two buffers take turns."""

from __future__ import annotations

import torch

from forgedsl.runtime.weight_sync import SHM, Publisher, open_weights


def test_round_trip_and_alternation() -> None:
    publisher = Publisher("test-round-trip", torch.float32)
    try:
        first = {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16()}
        second = {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16()}
        one, two = publisher.publish(first, 1), publisher.publish(second, 2)
        assert one.buffer != two.buffer
        for manifest, state in ((one, first), (two, second)):
            for name, value in open_weights(manifest):
                assert value.dtype is torch.float32
                torch.testing.assert_close(value, state[name].float(), rtol=0, atol=0)
    finally:
        publisher.close()
    assert not list(SHM.glob("forgedsl-test-round-trip-*"))
