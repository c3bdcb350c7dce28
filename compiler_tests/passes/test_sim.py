"""The parts of the simulator and the command: fits, assumptions, faults, what is printed."""

import asyncio
import json
import math
import random
from pathlib import Path

import pytest
from forge_commands import CliRunner

from forgedsl.cli.app import app
from forgedsl.sim.assume import assume
from forgedsl.sim.engine import Batching
from forgedsl.sim.fit import least_squares, overlap, union
from forgedsl.sim.inject import Fault, parse
from forgedsl.sim.latency import Engine, Latencies
from forgedsl.sim.values import constant, dist, quantiles, uniform
from forgedsl_runtime.sim.clock import Deadlock, run

PIPELINE = str(Path(__file__).parents[2] / "pipelines/grpo_math.forge")
SMALL = ("--profile", "cpu", "--set", "prompts=4", "--set", "held_out.limit=8", "--steps", "8")
LARGE = ("--profile", "cluster", "--set", "beta=0.0", "--set", "prompts=64")


def sim(*args):
    return CliRunner().invoke(app, ["sim", PIPELINE, *args])


# ---- values and fits


def test_keys_give_even_numbers_that_repeat():
    values = [uniform(3, 1, group, sibling) for group in range(100) for sibling in range(20)]
    assert values == [
        uniform(3, 1, group, sibling) for group in range(100) for sibling in range(20)
    ]
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.02)
    assert len(set(values)) == len(values)


def test_distributions_have_their_quantiles():
    assert constant(3.0).at(0.9) == dist("3").at(0.1) == 3.0
    assert (dist("4ms").at(0.5), dist("2min").at(0.5)) == (0.004, 120.0)
    log = dist("lognormal(200, 0.5)", most=300.0)
    assert (log.at(0.5), log.at(0.99)) == (pytest.approx(200.0), 300.0)
    measured = quantiles([float(i) for i in range(101)])
    assert [measured.at(u) for u in (0.0, 0.5, 1 - 1e-9)] == pytest.approx([0.0, 50.0, 100.0])
    with pytest.raises(ValueError, match="`fast` is not a number or duration"):
        dist("fast")


def test_long_completions_have_more_tokens_at_late_places():
    assert constant(8.0).mean_place == pytest.approx(4.0)
    assert quantiles([2.0, 2.0, 6.0]).mean_place > quantiles([2.0, 2.0, 6.0]).mean / 2


def test_other_lengths_read_other_numbers_of_keys():
    engine = Engine(
        tokens=constant(100.0), prompt=constant(40.0), decode=0.0, decode_sequence=0.007,
        prefill=0.0, max_running=8, load=0.0, start=0.0, decode_context=1e-4, context=60.0,
        siblings=4,
    )  # fmt: skip
    assert engine.with_lengths(tokens=engine.tokens, prompt=engine.prompt) == engine
    longer = engine.with_lengths(tokens=constant(200.0), prompt=engine.prompt)
    assert longer.context == pytest.approx(110.0)  # a quarter of the prompt, half of the tokens
    assert longer.decode_sequence == pytest.approx(0.012)
    latencies = Latencies(
        engines={"g": engine}, titans={}, rewards={}, filters={}, data={}, environments={}
    )
    assumed = assume(latencies, ["g.tokens=200"]).engines["g"]
    assert assumed.decode_sequence == pytest.approx(0.012)
    for text, context, empty in (("0.003", 5e-5, 0.0), ("0", 0.0, 0.0), ("0.008", 1e-4, 0.002)):
        assumed = assume(latencies, [f"g.decode_sequence={text}"]).engines["g"]
        assert assumed.decode_context == pytest.approx(context)
        assert assumed.decode_empty == pytest.approx(empty)


def test_blended_quantiles_are_correlated_as_asked():
    rng, log = random.Random(1), dist("lognormal(1, 1)")
    shared = [rng.random() for _ in range(4000)]
    for like, low, high in ((0.0, -0.05, 0.05), (0.5, 0.45, 0.55), (0.95, 0.9, 1.0)):
        pairs = [
            [math.log(log.blend(s, rng.random(), like)) for _ in range(2)] for s in shared
        ]  # fmt: skip
        product = sum(a * b for a, b in pairs) / len(pairs)
        assert low < product < high


def test_least_squares_finds_what_made_the_numbers():
    rng = random.Random(2)
    rows = [(rng.uniform(1, 9), rng.uniform(0, 50), rng.uniform(0, 5)) for _ in range(300)]
    values = [0.01 * a + 0.002 * b + 0.5 * c for a, b, c in rows]
    assert least_squares(rows, values) == pytest.approx([0.01, 0.002, 0.5])
    without = [0.01 * a + 0.002 * b - 0.5 * c for a, b, c in rows]
    assert least_squares(rows, without)[2] == 0.0


def test_spans_are_measured_as_by_counting():
    rng = random.Random(3)
    spans = [
        (start, start + rng.randint(1, 9)) for start in (rng.randint(0, 50) for _ in range(40))
    ]
    covered = {t for start, end in spans for t in range(start, end)}
    assert union(spans) == len(covered)
    apart = [(0.0, 2.0), (5.0, 6.0), (8.0, 20.0)]
    assert overlap((1.0, 10.0), apart) == 4.0


def test_an_engine_shares_its_time():
    """Two sequences of 10 tokens at 1 s + 1 s each: 3 s a token together, 2 s alone."""
    engine: Batching[str] = Batching(decode=1.0, decode_empty=1.0, max_running=2)
    engine.add(0.0, "a", 10.0, 0.0)
    engine.add(0.0, "b", 20.0, 0.0)
    engine.add(0.0, "c", 10.0, 4.0)
    assert engine.next_end() == 30.0
    assert engine.ended(30.0) == ["a"]
    assert engine.next_end() == 64.0  # after the prefill of c, which takes 4 s, both end together
    assert engine.ended(64.0) == ["b", "c"]
    assert (engine.busy, engine.stopped, engine.load) == (60.0, 4.0, 0)


def test_steps_get_longer_with_the_contexts_of_all():
    """1 s a step, 0.5 s for each sequence, 0.1 s for each token of their contexts."""
    engine: Batching[str] = Batching(
        decode=1.0, decode_empty=0.5, decode_context=0.1, max_running=2
    )
    engine.add(0.0, "a", 10.0, 0.0, context=10.0)
    assert engine.next_end() == pytest.approx(10 * 1.5 + 0.1 * (10 * 10 + 50))
    engine.add(9.25, "b", 20.0, 0.0, context=0.0)
    done = engine._level
    assert 1.5 * done + 0.1 * (10 * done + done * done / 2) == pytest.approx(9.25)
    left = 10 - done
    both = 2.0 * left + 0.1 * ((10 + done) * left + left * left / 2 + left * left / 2)
    end = engine.next_end()
    assert end == pytest.approx(9.25 + both)
    assert engine.ended(end) == ["a"]
    alone = 1.5 * (20 - left) + 0.1 * (20 * 20 - left * left) / 2
    assert engine.next_end() == pytest.approx(end + alone)
    assert engine.ended(engine.next_end()) == ["b"]


# ---- faults and assumptions


def test_an_engine_may_take_no_time():
    engine: Batching[str] = Batching(decode=0.0, decode_empty=0.0, max_running=2)
    engine.add(0.0, "a", 3.0, 0.0)
    assert engine.ended(1.0) == ["a"]


def test_faults_are_read():
    assert parse("kill:generator[1]@step=5") == Fault(
        kind="kill", target="generator", index=1, first=5
    )
    found = parse("slow:correct=20@step=2..6")
    assert (found.value, found.first, found.last) == (20.0, 2, 6)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--assume", "generator.tokens"), "write NAME.FIELD=VALUE"),
        (("--assume", "generator.token=3"), "did you mean `tokens`?"),
        (("--assume", "generator.decode=fast"), "`fast` is not a number or duration"),
        (("--inject", "kill:generator=3"), "kill takes no value"),
        (("--inject", "slow:trainer=2"), "`slow` is possible only for generators and rewards"),
        (("--inject", "fail:generator=1"), "a fraction must be below 1"),
        (("--calibrate", "nowhere"), "there is no folder nowhere"),
    ],
)
def test_what_cannot_be_simulated_is_said(args, said):
    done = sim(*SMALL, *args)
    assert (done.exit_code, said in done.output) == (2, True), done.output


# ---- what is predicted


def test_json_repeats_and_says_what_a_fault_costs():
    args = (*SMALL, "--format", "json", "--inject", "kill:generator@step=4")
    first, second = sim(*args).stdout, sim(*args).stdout
    assert first == second
    told = json.loads(first)
    assert (told["ended"], told["deaths"]) == ("steps", 1)
    assert told["seconds"] > told["undisturbed"]["seconds"] + 10
    assert told["worst_age"] <= told["age_bound"]


def test_what_ends_a_run_ends_its_simulation_in_the_same_words():
    def told(*args):
        return json.loads(sim(*SMALL, "--format", "json", *args).stdout)

    dead = told("--inject", "kill:trainer@step=3")
    assert (dead["steps"], dead["ended"]) == (2, "service trainer failed: it died")
    broken = told("--inject", "fail:generator=0.999")
    assert broken["ended"].startswith("sample rollout on generator failed 16 times in a row")


def test_hours_pass_at_once_and_a_wait_without_end_is_an_error():
    async def main():
        await asyncio.sleep(36_000)
        return asyncio.get_running_loop().time()

    assert run(main()) == 36_000

    async def hang():
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run(hang())


def test_more_engines_help_until_the_trainer_sets_the_pace():
    def step_s(replicas, *more):
        args = ("--set", f"generator.replicas={replicas}", "--assume", "generator.load=0", *more)
        done = sim(*LARGE, "--steps", "6", "--format", "json", *args)
        return json.loads(done.stdout)["step_s"]["mean"]

    one, four = step_s(1), step_s(4)
    assert one > 1.3 * four
    slow = ("--assume", "trainer.step=60")
    assert step_s(4, *slow) == pytest.approx(step_s(8, *slow), rel=0.02)


def test_slow_rewards_and_stragglers_cost_time():
    def told(*args):
        return json.loads(sim(*SMALL, "--format", "json", *args).stdout)

    slow = told("--assume", "correct.seconds=0.1")
    assert slow["busy"]["rewards"] > 0.9
    assert slow["step_s"]["mean"] > 3 * told()["step_s"]["mean"]
    straggler = told("--inject", "slow:generator=4@step=3..6")
    assert straggler["step_s"]["max"] > 1.5 * straggler["undisturbed"]["step_s"]["max"]


@pytest.mark.full
def test_tools_take_time_and_more_groups_in_flight_take_it_back():
    game = str(Path(PIPELINE).with_name("guess_math.forge"))

    def step_s(seconds, age):
        args = ["--assume", "game.turns=3", "--assume", f"game.step={seconds}"]
        args += ["--steps", "40", "--format", "json", "--set", f"schedule.max_policy_age={age}"]
        return json.loads(CliRunner().invoke(app, ["sim", game, *args]).stdout)["step_s"]["mean"]

    assert step_s(1, 1) > step_s(0, 1) + 0.5
    assert step_s(1, 16) < 0.5 * step_s(1, 1)
    text = CliRunner().invoke(app, ["sim", game, "--steps", "2", "--assume", "game.step=1"]).stdout
    assert "assumed: plays of game have lognormal(1.8, 0.5) up to 3 turns" in text
    assert "a step of game takes" not in text


def test_text_says_where_the_numbers_come_from():
    text = sim(*SMALL).stdout
    assert "simulation of grpo_math (profile cpu): 8 steps" in text
    assert "policy age  worst 1, planned at most 1" in text
    assert "latencies from the plan's cost model" in text
    assert "assumed: completions of generator have" in text


def test_ten_thousand_gpus_are_simulated():
    done = sim(
        "--profile", "cluster", "--steps", "2", "--format", "json",
        *(f for text in (
            "cluster.hosts=1250", "trainer.hosts=128", "trainer.parallel.dp_shard=1024",
            "generator.replicas=4488", "prompts=256", "beta=0.0",
        ) for f in ("--set", text)),
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["steps"] == 2
    assert told["events"] > 4_000


def test_a_step_time_that_rests_on_an_assumption_says_so(tmp_path):
    assert CliRunner().invoke(app, ["init", str(tmp_path / "p")]).exit_code == 0
    words = ["sim", str(tmp_path / "p/grpo.forge"), "--profile", "cpu", "--steps", "2",
             "--set", "correct.effects=[net]"]  # fmt: skip
    text = CliRunner().invoke(app, words).stdout
    assert "correct sets the step time, by an assumption below" in text
    assert "if known: --assume correct.seconds=S\n" in text
    text = CliRunner().invoke(app, [*words, "--assume", "correct.seconds=0.05"]).stdout
    assert "correct sets the step time\n" in text
