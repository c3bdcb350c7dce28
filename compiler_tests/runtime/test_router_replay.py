"""Router replay: engines record the experts of each token, and trainers choose them again."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_trainer_experts import DIMS, NEAR, of
from test_trainer_ranks import recorded_batch, same_step, trainer_of

from forgedsl_runtime.context_parallel import Context, shard_microbatch
from forgedsl_runtime.data_types import Batch, Prompt, Sample, StepResult
from forgedsl_runtime.environments.driver import Trajectory
from forgedsl_runtime.packing import pack
from forgedsl_runtime.recording import record, recorded_sample
from forgedsl_runtime.routes import join_routes, missing_route, pad_routes, route_dtype

HERE = Path(__file__).parent
LAYERS, ACTIVE = 2, 3


def some(tokens: int, first: int = 0) -> Any:
    """Routes that tell tokens and layers apart."""
    found = np.arange(tokens * LAYERS * ACTIVE, dtype=np.uint8) + first
    return found.reshape(tokens, LAYERS, ACTIVE)


def sample(tokens: int, routes: Any, starts: tuple[int, ...] = ()) -> Sample:
    return Sample(
        token_ids=list(range(100 * tokens, 101 * tokens)), num_prompt=2,
        mask=[True] * (tokens - 2), routes=routes, row_starts=starts,
    )  # fmt: skip


# ---- routes of a sequence


def test_a_token_without_a_route_has_the_number_of_no_expert() -> None:
    assert (route_dtype(255), route_dtype(256)) == (np.uint8, np.int16)
    assert (missing_route(np.dtype(np.uint8)), missing_route(np.dtype(np.int16))) == (255, 32767)
    last = pad_routes(some(3), 4)
    assert last[:3].tolist() == some(3).tolist()
    assert (last[3] == 255).all()


def test_rows_without_routes_stand_between_those_with_them() -> None:
    assert join_routes([(None, 3), (None, 2)]) is None
    whole = join_routes([(some(2), 3), (None, 2), (some(1, 50), 2)])
    assert whole is not None
    assert [int(row[0, 0]) for row in whole] == [0, 6, 255, 255, 255, 50, 255]


def test_each_row_of_a_trajectory_has_the_routes_of_its_last_turn() -> None:
    class Turn:
        """A completion of two tokens."""

        token_ids, logprobs, mask, text = [7, 8], [0.0, 0.0], [True, True], "ab"
        truncated, versions, started, finished, running = False, ((0, 2),), 0.0, 1.0, 0

        def __init__(self, routes: Any) -> None:
            self.routes = routes

    prompt = Prompt(group=0, row=0, text="", token_ids=[1, 2, 3], target=None)
    talk = Trajectory(prompt)
    talk.append_turn(Turn(some(4)))
    talk.append_observation([4], "c")
    talk.append_turn(Turn(some(7, 10)))
    talk.start_row([5, 6], "d")
    talk.append_turn(Turn(some(3, 100)))
    rollout = talk.rollout(0, "done")
    assert rollout.routes is not None
    assert len(rollout.routes) == len(prompt.token_ids) + len(rollout.token_ids) == 12
    firsts = [int(route[0, 0]) for route in rollout.routes]
    assert firsts == [*range(10, 52, 6), 255, *range(100, 118, 6), 255]


# ---- on the way to the routers


@pytest.mark.parametrize("flat", [False, True])
def test_a_microbatch_has_the_routes_of_its_tokens(flat: bool) -> None:
    samples = [sample(5, pad_routes(some(4), 5)), sample(4, None), sample(6, some(6, 60), (3,))]
    (micro,) = pack(samples, seq_len=16, rows=4, rank=0, world=1, flat=flat)
    assert micro.routes is not None
    assert micro.routes.shape == (*micro.tokens.shape, LAYERS, ACTIVE)
    routes, tokens = micro.routes.view(-1, LAYERS, ACTIVE), micro.tokens.flatten().tolist()
    used = torch.zeros(len(routes), dtype=torch.bool)
    for each in samples:
        begin = tokens.index(each.token_ids[0])
        here = routes[begin : begin + len(each.token_ids)].numpy()
        used[begin : begin + len(each.token_ids)] = True
        if each.routes is None:
            assert (here == -1).all()
            continue
        known = each.routes != 255
        assert here[known].tolist() == each.routes[known].tolist()
        assert (here[~known] == -1).all()
    assert (routes[~used] == -1).all()


def test_samples_without_routes_have_none() -> None:
    (micro,) = pack([sample(5, None)], seq_len=16, rows=4, rank=0, world=1)
    assert micro.routes is None


def test_ranks_that_share_rows_share_their_routes() -> None:
    samples = [sample(7, some(7)), sample(5, some(5, 90))]
    (micro,) = pack(samples, seq_len=16, rows=2, rank=0, world=1, parts=2)
    assert micro.routes is not None
    parts = [shard_microbatch(micro, Context(rank=rank, size=2)).routes for rank in range(2)]
    assert all(part is not None for part in parts)
    assert torch.cat(parts, 1).equal(micro.routes)  # type: ignore[arg-type]


def test_a_recorded_batch_keeps_its_routes(tmp_path: Path) -> None:
    batch = Batch(samples=[sample(5, some(5)), sample(4, None)])
    result = StepResult(version=3, loss=0.0, grad_norm=0.0, lr=0.0, tokens=9, metrics={}, kernel="")
    record(tmp_path, "trainer", "l", batch, result)
    written = json.loads((tmp_path / "batches/step-3.json").read_text())["batch"]["samples"]
    first, second = (recorded_sample(each) for each in written)
    assert first.routes is not None
    assert first.routes.dtype == np.uint8
    assert first.routes.tolist() == some(5).tolist()
    assert second.routes is None


# ---- the router


def printed(script: str, *words: str) -> Any:
    """What a script beside this file found, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *words],
        capture_output=True, text=True, check=False, env=os.environ, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.split("RESULT")[1])


@pytest.fixture(scope="module")
def router() -> Any:
    pytest.importorskip("torchtitan")
    return printed("router_choice.py")


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_router_chooses_what_it_is_given_by_its_own_scores(router: Any) -> None:
    own, given, chosen = (router[name] for name in ("own", "given", "chosen"))
    assert router["again"] == router["scores"]
    assert chosen[:2] == given[:2]
    assert chosen[2:] == own[2:]
    for weights, experts, scores in zip(router["weights"], chosen, router["scores"], strict=True):
        picked = [scores[expert] for expert in experts]
        assert weights == pytest.approx([score / sum(picked) for score in picked], rel=1e-6)
    differs = sum({*given[i]} != {*own[i]} for i in range(2))
    assert router["changed"] == [differs, 3]  # the third token has no route


@pytest.mark.timeout(240)
def test_gradients_reach_the_gate_through_the_given_experts(router: Any) -> None:
    for expert in {*router["given"][0], *router["given"][1]}:
        assert router["gradient"][expert] > 0


# ---- the engine


@pytest.fixture(scope="module", params=["qwen3_moe", "glm4_moe"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an engine recorded of a model with random weights, large enough to choose clearly."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("mixture")
    return printed("engine_routes.py", str(folder), request.param, json.dumps(DIMS))


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", ["plain", "swapped"])
def test_an_engine_records_the_experts_of_every_token(recorded: Any, case: str) -> None:
    """Prompts from the prefix cache, preempted requests, requests with stop strings, and contexts
    that are computed anew under other weights: all have the routes that the text has when it is
    read anew. Near ties may fall differently, since one token and many take different kernels."""
    assert len(recorded[case]) == 11
    for shape, tokens, differ in recorded[case]:
        assert shape == [tokens - 1, LAYERS, ACTIVE]
        assert differ <= math.ceil(0.02 * tokens)


@pytest.mark.full
def test_the_short_way_goes_on_and_nothing_is_kept(recorded: Any) -> None:
    assert recorded["short"] > 20
    assert recorded["left"] == 0
    assert set(recorded["experts"]) <= set(range(8))


# ---- trainers


def with_routes() -> Batch:
    """The recorded batch, with random routes; a few tokens have none."""
    draw = np.random.default_rng(5)
    batch = recorded_batch()
    for each in batch.samples:
        tokens = len(each.token_ids)
        scores = draw.random((tokens, LAYERS, DIMS["experts"]))
        chosen = scores.argsort(-1)[..., :ACTIVE].astype(np.uint8)
        chosen[-1] = 255
        each.routes = chosen
    return batch


def stepped(folder: Path, degrees: dict[str, int], batch: Batch) -> Any:
    """Results of two steps, and log-probs before and after them."""
    job, procs = of(degrees)
    trainer = job.trainers["trainer"].model_copy(update={"router_replay": True})
    job = job.model_copy(update={"services": {"trainer": trainer}})
    folder.mkdir()

    async def steps() -> Any:
        async with trainer_of(job, procs, folder) as (mesh, _):
            asked = [await mesh.first("logprobs", batch.samples[:8])]
            found = [await mesh.first("step", batch, "recorded") for _ in range(2)]
            asked.append(await mesh.first("logprobs", batch.samples[:8]))
            return found, asked

    return asyncio.run(steps())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one rank does."""
    return stepped(tmp_path_factory.mktemp("alone") / "run", {}, with_routes())


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_trainer_learns_through_the_given_experts(tmp_path: Path, alone: Any) -> None:
    own, _ = stepped(tmp_path / "run", {}, recorded_batch())
    replayed, _ = alone
    assert own[0].routes_changed is None
    # 3 of 8 at random are the router's own three in one of 56 cases
    assert 0.9 < replayed[0].routes_changed < 1.0
    assert abs(replayed[0].grad_norm - own[0].grad_norm) > 1e-3 * own[0].grad_norm
    assert all(math.isfinite(result.loss) and result.grad_norm > 0 for result in replayed)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "degrees",
    [
        pytest.param({"dp_shard": 2, "ep": 2}, id="ep 2", marks=pytest.mark.full),
        pytest.param({"dp_shard": 2, "cp": 2, "ep": 4}, id="rows shared", marks=pytest.mark.deep),
        pytest.param({"tp": 2, "ep": 2}, id="ep 2 of tp", marks=pytest.mark.deep),
    ],
)
def test_ranks_replay_as_one_does(tmp_path: Path, alone: Any, degrees: dict[str, int]) -> None:
    results, asked = stepped(tmp_path / "run", degrees, with_routes())
    for a, b in zip(alone[0], results, strict=True):
        same_step(a, b)
        assert b.routes_changed == pytest.approx(a.routes_changed, abs=0.01)
    for one, several in zip(alone[1], asked, strict=True):
        torch.testing.assert_close(
            several, one, rtol=NEAR["rel"], atol=2e-4 * 2 * NEAR["rel"] + 1e-5
        )
