"""The search of placements, against all there are on small hosts; `forgec plan --alternatives`."""

import json
from itertools import combinations, product

import pytest
from forge_commands import CliRunner
from forge_texts import GRPO, SFT, changed, loaded, plan_of
from hypothesis import given, settings
from hypothesis import strategies as st

from forgedsl.cli.app import app
from forgedsl.diagnostics import Reporter
from forgedsl.graph.dataflow import build
from forgedsl.ir.program import Ref
from forgedsl.plan.alternatives import alternatives, render
from forgedsl.plan.capacity import TIGHT
from forgedsl.plan.plan import plan, request_of
from forgedsl.plan.schedule import plan_schedule
from forgedsl.plan.search import changed as with_values
from forgedsl.plan.search import full_space, search
from forgedsl.records import replace
from forgedsl.sizes.hosts import Host, gpu_bytes

SYNC = ("schedule async { steps = 500, max_policy_age = 1 }", "schedule sync { steps = 5 }")
SMALL = changed(
    GRPO,
    ("service reference : titan(policy) { device = cpu, procs = 2 }",
     "service reference : titan(policy) { procs = 2 }"),
    ("gsm8k.draw(16)", "gsm8k.draw(4)"),
)  # fmt: skip


def host(gpus, gpu="H100", gpu_memory=None):
    return Host(gpus=gpus, gpu=gpu, gpu_memory=gpu_memory or gpu_bytes(gpu))


def parts(text, where, *overrides):
    found = loaded(text, *overrides, host=where)
    return found.program, build(found.program, reporter=found.reporter)


def candidates(program, graph, where):
    base = request_of(program, graph, (), Reporter(), where, None)
    schedule = plan_schedule(program, graph, Reporter())
    return search(base, graph, schedule, full_space(base, graph))


def every_plan(program, graph, gpus):
    """The plans of all settings there are, good or bad."""
    names = [n for n in graph.services if program.services[n].settings["device"].value == "gpu"]
    sizes = {}
    for name in names:
        ranks = [(p, t) for p in range(1, gpus + 1) for t in (1, 2, 4) if p % t == 0]
        sizes[name] = [
            {"procs": p, "parallel.tp": t, "parallel.dp_shard": p // t}
            if name != "generator"
            else {"procs": t, "parallel.tp": t, "replicas": p // t}
            for p, t in ranks
        ]
    pools = [()] + [c for k in range(2, len(names) + 1) for c in combinations(names, k)]
    memory = list(product(("none", "selective", "full"), range(1, 14)))
    shared = program.singletons["colocate"]
    for pool, chosen in product(pools, product(*(sizes[name] for name in names))):
        users = {n: v["procs"] * v.get("replicas", 1) for n, v in zip(names, chosen, strict=True)}
        alone = sum(count for n, count in users.items() if n not in pool)
        if alone + max((users[n] for n in pool), default=0) > gpus:
            continue
        for mode, rows in memory:
            new = {n: with_values(program.services[n], v)
                   for n, v in zip(names, chosen, strict=True)}  # fmt: skip
            more = {"memory.activation_checkpoint": mode, "batch.rows": rows}
            new["trainer"] = with_values(new["trainer"], more)
            refs = with_values(shared, {"value": [Ref(name=n) for n in pool]})
            changed_ = replace(
                program, services={**program.services, **new},
                singletons={**program.singletons, "colocate": refs},
            )  # fmt: skip
            yield changed_


def fits(made):
    """As the search has it: some room, but in a GPU that an engine has for itself."""
    return all(
        s.share <= (1.0 if s.services == ("generator",) and s.kind == "gpu" else TIGHT)
        for s in made.memory.stores
    )


@settings(max_examples=4, deadline=None)
@given(
    gpu=st.sampled_from(["L4", "A100", "H200"]),
    gpus=st.integers(1, 2),
    beta=st.sampled_from(["0.0", "0.02"]),
    sync=st.booleans(),
)
def test_no_placement_of_all_is_faster_than_the_chosen_one(gpu, gpus, beta, sync):
    where = host(gpus, gpu)
    program, graph = parts(changed(SMALL, SYNC) if sync else SMALL, where, f"beta={beta}")
    made = [plan(p, graph, reporter=Reporter(), host=where)
            for p in every_plan(program, graph, gpus)]  # fmt: skip
    times = [m.cost.step_seconds for m in made if m is not None and fits(m)]
    best = next(candidates(program, graph, where), None)
    if best is None:
        assert times == []
    else:
        assert best.cost.step_seconds <= min(times) * (1 + 1e-9)


def test_candidates_come_in_order_and_fit():
    program, graph = parts(SMALL, host(4))
    found = list(candidates(program, graph, host(4)))
    assert [c.key for c in found] == sorted(c.key for c in found)
    assert all(plan(c.program, graph, reporter=Reporter(), host=host(4)) for c in found[:9])
    assert max(s.share for c in found for s in c.stores) <= 1.0


def test_two_searches_give_the_same():
    program, graph = parts(SMALL, host(4))
    first, second = ([c.key for c in candidates(program, graph, host(4))] for _ in range(2))
    assert first == second


def test_sampling_and_training_share_no_gpu_in_an_asynchronous_schedule():
    program, graph = parts(SMALL, host(4))
    shared = {c.colocate for c in candidates(program, graph, host(4))}
    assert not any({"trainer", "generator"} <= set(pool) for pool in shared)
    turns, graph = parts(changed(SMALL, SYNC), host(4))
    assert any({"trainer", "generator"} <= set(c.colocate)
               for c in candidates(turns, graph, host(4)))  # fmt: skip


def test_a_step_over_batches_keeps_the_rows_that_it_trains_on():
    program, graph = parts(SFT, host(8))
    for each in candidates(program, graph, host(8)):
        mesh = each.request.mesh("trainer")
        assert (mesh.degrees["dp_shard"], each.request.rows["trainer"]) == (8, (15, 4096))


@pytest.mark.parametrize(
    ("seq_len", "mode", "cp"), [(4096, "none", 1), (32768, "full", 1), (32768, "none", 2)]
)
def test_ranks_share_rows_where_whole_ones_do_not_fit(seq_len, mode, cp):
    batch = f"seq_len = {seq_len}, rows = 1 }}, memory.activation_checkpoint = {mode}"
    text = changed(
        GRPO,
        ("procs = 4,", "procs = 4, parallel.cp = auto,"),
        ("seq_len = 4096, rows = 4 }", batch),
        ("context = 4096", "context = 32768"),
    )
    made, _ = plan_of(text, host=host(8))
    assert made.chosen == {"trainer.parallel.cp": str(cp)}


def test_a_pool_without_room_lets_fewer_completions_run():
    edits = ("reference.device=gpu", "reference.procs=1", "generator.replicas=1")
    details = []
    for part in ("0.5", "0.1"):
        program, graph = parts(GRPO, host(8), *edits, f"generator.engine.gpu_memory={part}")
        made = plan(program, graph, reporter=Reporter(), host=host(8))
        details += [s.detail for s in made.cost.stages if s.node == "rollout"]
    assert details == ["128 x 1024, 256 at once", "128 x 1024, 76 at once"]


# ---- the command


def forgec(*arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "grpo.forge"
    path.write_text(changed(
        SMALL, ("procs = 2 }", "procs = trainer.procs }"), ("procs = 4, optim", "procs = 2, optim"),
    ))  # fmt: skip
    return str(path)


def test_what_is_to_be_written_gives_that_placement(file):
    where = ("--host", "8xH200", "--format", "json")
    document = json.loads(forgec("plan", file, *where, "--alternatives").stdout)
    assert len(document["alternatives"]) == 5
    for each in document["alternatives"]:
        edits = [f"{path}={value}" for path, value in each["settings"].items()]
        planned = json.loads(forgec("plan", file, *where, *edits).stdout)
        assert planned["cost"]["step_seconds"] == pytest.approx(each["step_seconds"])
        assert each["memory"] == [
            {k: s[k] for k in ("name", "count", "bytes", "capacity")}
            for s in planned["memory"]["stores"] if s["name"].startswith("GPU")
        ]  # fmt: skip


@pytest.mark.full
def test_the_file_s_own_placement_is_marked(file):
    others = forgec("plan", file, "--host", "8xH200", "--alternatives").stdout
    assert "<- as in the file, " in others
    assert max(map(len, others.splitlines())) <= 100
    best = json.loads(forgec("plan", file, "--host", "8xH200", "--alternatives",
                             "--format", "json").stdout)["alternatives"][0]  # fmt: skip
    edits = [f"{path}={value}" for path, value in best["settings"].items()]
    same = forgec("plan", file, "--host", "8xH200", "--alternatives", *edits).stdout
    assert same.splitlines()[3].endswith("<- as in the file")


def test_alternatives_to_a_plan_that_does_not_fit_are_shown(file):
    result = forgec("plan", file, "--host", "4xH100", "--alternatives")
    assert result.exit_code == 4
    assert "P203" in result.stderr
    assert "trainer.procs=2" in result.stdout


def test_nothing_is_compared_where_a_size_is_not_known():
    unknown = ('hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B")', 'hf("a/b")')
    text = changed(SMALL, unknown)
    program, graph = parts(text, host(8))
    page = render(alternatives(program, graph, None, host=host(8), base_dir=None))
    assert page.startswith("the size of the model of `trainer`, ")


def test_a_host_that_is_too_small_has_no_placement():
    program, graph = parts(SMALL, host(1, "L4"))
    page = render(alternatives(program, graph, None, host=host(1, "L4"), base_dir=None))
    assert page.startswith("no placement fits 1 host: 1 x L4")


def test_a_search_ends_where_nearly_everything_is_open_and_little_fits(monkeypatch):
    from forgedsl.plan import search as module

    judged = []
    work_out = module._Search._evaluate
    monkeypatch.setattr(
        module._Search, "_evaluate", lambda *args: [judged.append(1), work_out(*args)][1]
    )
    text = changed(SMALL, SYNC, ("procs = 2 }", "procs = 2, batch.rows = auto }"),
                   ("draw(4)", "draw(256)"))  # fmt: skip
    program, graph = parts(text, host(8, "L40S"))
    assert next(candidates(program, graph, host(8, "L40S")), None) is not None
    assert module.MOST <= len(judged) <= module.MOST + 100
