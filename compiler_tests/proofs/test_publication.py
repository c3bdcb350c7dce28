"""What was published against what an engine holds: each fault is named by its tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from meeting import Meeting
from torch import Tensor

from forgedsl.lower.job import Node
from forgedsl_runtime.endpoints import SyncResult
from forgedsl_runtime.guards import GuardError, UnchangedWeightsGuard
from forgedsl_runtime.proofs.digest import digest, unsigned
from forgedsl_runtime.proofs.publication import Digest, Held, arrival, faults, text
from forgedsl_runtime.services.titan.upstream.gathering import gather_tensors
from forgedsl_runtime.services.titan.upstream.router import InF32
from forgedsl_runtime.transports import base
from forgedsl_runtime.transports.base import Manifest, Ranks, Sender, Transport

Q, K, NORM = "layers.0.q_proj.weight", "layers.0.k_proj.weight", "layers.0.norm.weight"


def state() -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(3)
    shapes = {Q: (8, 4), K: (8, 4), NORM: (4,)}
    return {name: torch.randn(*shape, generator=rng) for name, shape in shapes.items()}


def published(weights: dict[str, Tensor]) -> dict[str, Digest]:
    return {
        name: Digest(
            rows=len(value), columns=value.numel() // len(value), value=unsigned(int(digest(value)))
        )
        for name, value in weights.items()
    }


def held(weights: dict[str, Tensor], ranks: int = 2) -> list[Held]:
    """As ranks of an engine hold them: rows of two tensors, all of the third."""

    def part(name: str, value: Tensor, row: int = 0) -> Held:
        found = unsigned(int(digest(value, row)))
        columns = value.numel() // len(value)
        return Held(name=name, row=row, rows=len(value), column=0, columns=columns, value=found,
                    dtype="float32", where="fused")  # fmt: skip

    found = []
    for rank in range(ranks):
        for name, value in weights.items():
            rows = len(value) // ranks
            whole = name == NORM
            mine = value if whole else value[rank * rows : (rank + 1) * rows]
            found.append(part(name, mine, 0 if whole else rank * rows))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_arrived_as_it_was_has_no_fault(ranks: int) -> None:
    assert faults(published(state()), held(state(), ranks)) == []
    found = arrival(published(state()), held(state(), ranks), set(state()))
    assert (found.proved, found.faults, found.placeless) == (3, (), ())


def changed(name: str, value: Tensor) -> dict[str, Tensor]:
    return state() | {name: value}


CASES: dict[str, tuple[Callable[[], list[Held]], str]] = {
    "not sent": (lambda: [p for p in held(state()) if p.name != Q], f"{Q} is not in the engine"),
    "q and k swapped": (
        lambda: held(state() | {Q: state()[K], K: state()[Q]}),
        f"{Q} has other values in the engine (fused)",
    ),
    "stale": (lambda: held(changed(K, 0.99 * state()[K])), f"{K} has other values in the engine"),
    "the shard of another rank": (
        lambda: held(changed(Q, torch.cat([state()[Q][:4], state()[Q][:4]]))),
        f"{Q} has other values in the engine",
    ),
    "a rank without its shard": (
        lambda: [p for p in held(state()) if (p.name, p.row) != (Q, 4)],
        f"{Q}: the engine holds 50% of its elements",
    ),
    "a copy that differs": (
        lambda: held(state())[:-1] + held(changed(NORM, state()[NORM] + 1))[-1:],
        f"{NORM} differs between copies in the engine",
    ),
    "one that nobody sent": (
        lambda: [*held(state()), *held({"layers.0.bias": torch.ones(4)}, 1)],
        "layers.0.bias was not published, but the engine has it as fused",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named(name: str) -> None:
    make, expected = CASES[name]
    found = faults(published(state()), make())
    assert found[0].startswith(expected)
    assert arrival(published(state()), make(), {p.name for p in make()} | set(state())).proved == 0


def test_a_message_names_some_and_counts_the_others() -> None:
    found = faults(published({f"w{i}": torch.ones(2, 2) for i in range(9)}), [])
    assert text(found).endswith("; and 5 more")
    assert text(found[:2]) == "w0 is not in the engine; w1 is not in the engine"


def test_a_tensor_that_an_engine_has_no_place_for_is_told_apart() -> None:
    found = arrival(published(state()), [p for p in held(state()) if p.name != Q], {K, NORM})
    assert (found.proved, found.faults, found.placeless) == (2, (), (Q,))


# ---- what a sender says


class Buffers:
    """Buffers in this process."""

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, Any]:
        return torch.zeros(num_bytes, dtype=torch.uint8), turn

    def wait_for_copies(self) -> None:
        pass

    def close(self) -> None:
        pass


def sender(dtype: torch.dtype = torch.float32) -> Sender:
    here = Transport(name="here", buffers=lambda key: Buffers(), open=lambda m: iter(()))
    return Sender(here, "key", dtype)


def test_a_manifest_has_the_digests_of_what_is_sent() -> None:
    manifest = sender(torch.bfloat16).publish(state(), 0)
    assert manifest.digests == published({k: v.bfloat16() for k, v in state().items()})


def test_the_tensors_of_a_router_are_published_in_f32() -> None:
    """A correction bias exactly; weights with the values of the service's dtype."""
    gate, bias = torch.randn(4, 8), torch.randn(4) + 100
    here = Transport(name="here", buffers=lambda key: Buffers(), open=lambda m: iter(()))
    way = Sender(here, "key", torch.bfloat16, gather_tensors)
    given = {"w": torch.randn(3, 5), "gate": InF32(gate, rounded=True),
             "bias": InF32(bias, rounded=False)}  # fmt: skip
    manifest = way.publish(given, 0)  # type: ignore[arg-type]
    (part,) = manifest.parts
    assert [entry.dtype for entry in part.entries] == ["bfloat16", "float32", "float32"]
    assert manifest.digests == published(
        {"w": given["w"].bfloat16(), "gate": gate.bfloat16().float(), "bias": bias}
    )


def test_digests_are_of_the_tensors_and_not_of_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that took other bytes than it was given is found by whoever reads it."""
    way = sender()
    original = base.view
    monkeypatch.setattr(
        base, "view", lambda *a: original(*a).clone() if a[1].name == Q else original(*a)
    )
    digests = way.publish(state(), 0).digests
    assert digests == published(state())


def test_the_share_of_changed_elements_is_counted() -> None:
    way = sender()
    assert way.publish(state(), 0).changed is None
    newer = state()
    newer[Q][:2] += 1
    assert way.publish(newer, 1).changed == 8 / 68
    assert way.publish(newer, 2).changed == 0.0
    assert way.publish(state(), 3).changed == 8 / 68


def test_an_update_that_bf16_cannot_show_changes_nothing() -> None:
    way = sender(torch.bfloat16)
    way.publish(state(), 0)
    assert way.publish({k: v * (1 + 1e-6) for k, v in state().items()}, 1).changed == 0.0


def test_large_weights_on_a_host_are_proved_at_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "EAGER_BYTES", 0)
    way = sender()
    proved = [way.publish(state(), i).digests is not None for i in range(31)]
    assert [i for i, yes in enumerate(proved) if yes] == [0, 1, 2, 10, 20, 30]


def test_ranks_say_together_what_each_has_sent() -> None:
    meeting = Meeting(2)
    here = Transport(
        name="here", buffers=lambda key: Buffers(), open=lambda m: iter(()), shared=True
    )

    def published_twice(rank: int) -> Manifest:
        ranks = Ranks(rank=rank, world=2, gather_objects=meeting.together(rank))
        way = Sender(here, "key", torch.float32, ranks=ranks)
        way.publish(state(), 0)
        return way.publish({name: value + 1 for name, value in state().items()}, 1)

    for manifest in meeting.run(published_twice):
        assert manifest.digests == published({k: v + 1 for k, v in state().items()})
        assert manifest.changed == 1.0


# ---- updates that change nothing


def sync_node() -> Node:
    return Node(
        id="sync", name="sync", op="sync", target="trainer", to="generator", level="batch",
        origin="f.forge:3",
    )  # fmt: skip


def result(changed: float | None) -> SyncResult:
    return SyncResult(bytes=1, transport="shm", seconds=0.1, changed=changed)


def test_an_update_that_changes_nothing_in_f32_stops_the_run() -> None:
    guard = UnchangedWeightsGuard()
    assert guard.check(sync_node(), result(None), "f32") == ""
    assert guard.check(sync_node(), result(0.3), "f32") == ""
    with pytest.raises(GuardError, match="none of the weights of generator"):
        guard.check(sync_node(), result(0.0), "f32")


def test_in_bf16_it_is_told_first_and_stops_when_it_goes_on() -> None:
    guard = UnchangedWeightsGuard()
    assert "below the precision of" in guard.check(sync_node(), result(0.0), "bf16")
    for _ in range(6):
        assert guard.check(sync_node(), result(0.0), "bf16") == ""
    with pytest.raises(GuardError, match=r"8 times in a row"):
        guard.check(sync_node(), result(0.0), "bf16")


def test_an_update_that_changes_something_begins_the_count_anew() -> None:
    guard = UnchangedWeightsGuard()
    for _ in range(3):
        for _ in range(7):
            guard.check(sync_node(), result(0.0), "bf16")
        guard.check(sync_node(), result(1e-6), "bf16")
