"""Which weight transport a plan gives a sync, and which it takes when asked."""

from dataclasses import replace

import pytest
from forge_texts import GRPO, changed, plan_of

from forgedsl import transports
from forgedsl.plan.cost import SYNC_LAYER
from forgedsl.plan.plan import Plan
from forgedsl.sizes.devices import linked
from forgedsl.sizes.hosts import Host
from forgedsl.sizes.params import num_params
from forgedsl.transports import TRANSPORTS, Spot, choose

TRAINER, BESIDE, REMOTE = (Spot(host=h, gpus=(g,), procs=1) for h, g in ((0, 0), (0, 1), (1, 0)))
CPU = Spot(host=0, gpus=(), procs=1)
PEER = next(each for each in TRANSPORTS if each.name == "peer")


@pytest.mark.parametrize("nvlink", [True, False])
def test_one_gpu_shares_its_memory(nvlink: bool) -> None:
    assert choose(TRAINER, [TRAINER], linked=nvlink) == "ipc"


def test_gpus_of_a_host_read_each_other_where_they_are_known_to_reach() -> None:
    assert choose(TRAINER, [BESIDE, BESIDE], linked=True) == "peer"
    assert choose(TRAINER, [BESIDE, BESIDE], linked=False) == "shm"


def test_gpus_of_other_hosts_are_sent_to() -> None:
    assert choose(TRAINER, [REMOTE], linked=True) == "nccl"
    assert choose(TRAINER, [BESIDE, REMOTE], linked=True) == "nccl"


def test_a_gpu_sends_itself_nothing() -> None:
    assert choose(TRAINER, [TRAINER, REMOTE], linked=True) == "tcp"
    assert choose(replace(TRAINER, hosts=2), [REMOTE], linked=False) == "tcp"


def test_the_stages_of_a_pipeline_send_from_their_own_hosts() -> None:
    stages = replace(CPU, hosts=2, stages=2)
    assert choose(stages, [CPU], linked=True) == "tcp"
    assert choose(replace(stages, hosts=1), [CPU], linked=True) == "shm"


def test_processors_reach_no_gpu() -> None:
    assert choose(TRAINER, [replace(CPU, host=1)], linked=True) == "tcp"
    assert choose(CPU, [CPU], linked=True) == "shm"


@pytest.mark.parametrize(
    ("hosts", "way"), [([1, 2], "tcp"), ([0, 1, 2], "tcp"), ([1, 1], "tree"), ([1, 2, 3], "tree")]
)
def test_hosts_hand_weights_on_where_fewer_copies_leave_the_trainers(
    hosts: list[int], way: str
) -> None:
    assert choose(CPU, [replace(CPU, host=host) for host in hosts], linked=False) == way


def test_a_further_row_of_the_same_sort_moves_no_placement(monkeypatch) -> None:
    tree = next(each for each in TRANSPORTS if each.name == "tree")
    more = replace(tree, name="later")
    monkeypatch.setattr(transports, "TRANSPORTS", (*TRANSPORTS, more))
    for hosts, way in ([1, 2], "tcp"), ([1, 2, 3], "tree"):
        assert choose(CPU, [replace(CPU, host=host) for host in hosts], linked=False) == way


def on_three_hosts(way: str, *more: str, gpus: int = 6) -> Plan:
    """A trainer and four replicas: one beside it, two on the second host, one on the third."""
    begin = "sync trainer -> generator {"
    text = changed(GRPO, ("procs = 4,", ""), (begin, f"{begin} transport = {way},"))
    words = ("launcher=process", "cluster.hosts=3", "generator.replicas=4", *more)
    host = Host(gpus=gpus, gpu="H200", gpu_memory=141 << 30, cpus=8, memory=512 << 30)
    plan, found = plan_of(text, *words, "generator.parallel.tp=1", host=host)
    assert plan is not None, found
    return plan


@pytest.mark.parametrize(("way", "name", "copies"), [
    ("tree", "weights in transfer", 2), ("tcp", "weights received", 1), ("nccl", "", 0),
])  # fmt: skip
def test_a_plan_counts_what_weights_arrive_in(way: str, name: str, copies: int) -> None:
    plan = on_three_hosts(way)
    size = 2 * num_params(plan.request.dims["trainer"])
    parts = plan.memory.stores[-1].parts
    assert {k: n for k, n in parts.items() if k.startswith("weights")} == (
        {name: copies * size} if copies else {}
    )


def test_shared_memory_of_a_host_without_gpus_is_counted_once() -> None:
    tree, tcp = (on_three_hosts(way, "generator.gpus=0", gpus=3) for way in ("tree", "tcp"))
    size = 2 * num_params(tree.request.dims["trainer"])
    parts = [dict(plan.memory.stores[-1].parts) for plan in (tree, tcp)]
    assert parts[0].pop("weights in transfer") == 2 * size
    assert parts[1]["generator"] - parts[0]["generator"] == size, "its replica maps one of them"


@pytest.mark.parametrize(("way", "copies"), [("tree", 2), ("tcp", 3)])
def test_a_plan_counts_the_copies_that_leave_a_host(way: str, copies: int) -> None:
    plan = on_three_hosts(way)
    stage = plan.cost.stages[-1]
    size = stage.bytes / 2**20
    assert stage.detail == f"{size:,.0f} MiB by {way}, {copies * size:,.0f} out of its host"
    fixed = SYNC_LAYER * 28
    assert stage.seconds == pytest.approx(fixed + copies * stage.bytes / 0.7e9)


def test_gpus_of_a_host_may_be_asked_to_read_each_other() -> None:
    assert PEER.serves(TRAINER, [BESIDE, BESIDE])
    assert not PEER.serves(TRAINER, [REMOTE])
    assert not PEER.serves(TRAINER, [CPU])


@pytest.mark.parametrize(("way", "codes"), [("auto", []), ("nccl", []), ("ipc", ["P214"])])
def test_hosts_of_one_machine_have_gpus_of_their_own(way: str, codes: list[str]) -> None:
    begin = "sync trainer -> generator {"
    text = changed(GRPO, ("procs = 4,", ""), (begin, f"{begin} transport = {way},"))
    words = ("launcher=process", "cluster.hosts=2", "generator.replicas=1")
    host = Host(gpus=2, gpu="H200", gpu_memory=141 << 30, cpus=8, memory=512 << 30)
    plan, found = plan_of(text, *words, "generator.parallel.tp=1", host=host)
    assert [d.code for d in found] == codes
    assert plan is None or plan.cost.stages[-1].detail.endswith("by nccl")


@pytest.mark.parametrize("name", ["H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "B200"])
def test_modules_are_joined_by_nvlink(name: str) -> None:
    assert linked(name)


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-PCIE-40GB", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "L40S", "MI300X", None]
)
def test_cards_and_unknown_gpus_are_not(name: str | None) -> None:
    assert not linked(name)
