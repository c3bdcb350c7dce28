"""Which weight transport a plan gives a sync, and which it takes when asked."""

from forgedsl.transports import TRANSPORTS, Spot, choose

TRAINER, BESIDE, REMOTE = (Spot(host=h, gpus=(g,), procs=1) for h, g in ((0, 0), (0, 1), (1, 0)))
CPU = Spot(host=0, gpus=(), procs=1)
PEER = next(each for each in TRANSPORTS if each.name == "peer")


def test_a_plan_takes_what_it_knows_to_connect() -> None:
    assert choose(TRAINER, [TRAINER]) == "ipc"
    assert choose(TRAINER, [BESIDE]) == "shm"


def test_gpus_of_a_host_may_be_asked_to_read_each_other() -> None:
    assert PEER.serves(TRAINER, [BESIDE, BESIDE])
    assert not PEER.serves(TRAINER, [REMOTE])
    assert not PEER.serves(TRAINER, [CPU])
