"""Liveness against the token game: what the analysis refuses stops, what it accepts goes on."""

import os
import random

from forgedsl.plan.liveness import Net, Transition

NUM_NETS = 3_000 if os.environ.get("FORGE_DEEP") == "1" else 300


def random_net(rng: random.Random) -> Net:
    """A ring of transitions with random rates, and chords that carry tokens back."""
    size = rng.randint(2, 6)
    firings = [rng.randint(1, 4) for _ in range(size)]
    consumes: list[dict[str, int]] = [{} for _ in range(size)]
    produces: list[dict[str, int]] = [{} for _ in range(size)]
    tokens: dict[str, int] = {}
    pairs = [(i, (i + 1) % size) for i in range(size)]
    pairs += [(rng.randrange(size), rng.randrange(size)) for _ in range(rng.randint(0, 3))]
    for number, (source, target) in enumerate(pairs):
        place = f"p{number}"
        # balanced: what a round makes, a round takes
        produces[source][place] = firings[target]
        consumes[target][place] = firings[source]
        tokens[place] = rng.choice([0, 0, rng.randint(0, 6), firings[source] * firings[target]])
    return Net(
        transitions=tuple(
            Transition(name=f"t{i}", consumes=consumes[i], produces=produces[i], firings=firings[i])
            for i in range(size)
        ),
        tokens=tokens,
    )


def plays_on(net: Net, rng: random.Random, turns: int) -> bool:
    """Fire random enabled transitions; False when none is enabled any more."""
    tokens = dict(net.tokens)
    for _ in range(turns):
        able = [
            t for t in net.transitions if all(tokens.get(p, 0) >= n for p, n in t.consumes.items())
        ]
        if not able:
            return False
        chosen = rng.choice(able)
        for place, count in chosen.consumes.items():
            tokens[place] -= count
        for place, count in chosen.produces.items():
            tokens[place] = tokens.get(place, 0) + count
    return True


def test_refused_nets_stop_and_accepted_ones_do_not():
    rng = random.Random(5)
    verdicts = {True: 0, False: 0}
    for _ in range(NUM_NETS):
        net = random_net(rng)
        live = not net.stuck()
        verdicts[live] += 1
        assert plays_on(net, rng, turns=400) is live, net
        assert bool(net.cycle()) is not live
    assert min(verdicts.values()) > NUM_NETS // 10


def test_every_place_of_a_reported_cycle_joins_two_stuck_transitions():
    rng = random.Random(9)
    for _ in range(NUM_NETS):
        net = random_net(rng)
        stuck = {t.name: t for t in net.stuck()}
        cycle = net.cycle()
        for i, (name, place) in enumerate(cycle):
            maker = stuck[cycle[i - 1][0]]
            assert place in maker.produces
            assert place in stuck[name].consumes
