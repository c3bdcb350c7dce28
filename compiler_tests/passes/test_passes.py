"""The table of passes: what they make, what their verifiers catch, and how one looks at it."""

import re
from pathlib import Path

import pytest
from forge_commands import CliRunner

from forgedsl.cli.app import app
from forgedsl.errors import InternalError
from forgedsl.ir.program import Value
from forgedsl.irtext import print_ir
from forgedsl.lower.job import LocalModel
from forgedsl.passes import PASSES, Request, compile_program, names
from forgedsl.passes.manager import verify
from forgedsl.records import replace

ROOT = Path(__file__).parents[2]
GRPO = ROOT / "pipelines" / "grpo_math.forge"
SUMS = (ROOT / "README.md").read_text("utf-8").split("```forge sums.forge\n")[1].split("```")[0]


@pytest.fixture(scope="module")
def state():
    found = compile_program(Request(path=GRPO, profile="cluster"), wanted=("tokens",)).state
    assert found is not None
    return found


def test_the_passes_in_order(state):
    assert names() == ("tokens", "ast", "hir", "graph", "plan", "job")
    assert all(getattr(state, name) is not None for name in names())


def test_compilation_ends_with_the_pass_that_reports(tmp_path):
    file = tmp_path / "a.forge"
    file.write_text("forge 1\nmodel m { source = random(0), dtype = f3 }\n")
    found = compile_program(Request(path=file))
    assert [made.name for made in found.made] == ["ast"]
    assert found.state is not None
    assert found.state.graph is None
    assert found.loaded.reporter.has_errors


def test_a_file_that_cannot_be_read_has_no_state(tmp_path):
    found = compile_program(Request(path=tmp_path / "none.forge"))
    assert found.state is None
    assert [d.code for d in found.loaded.reporter] == ["S016"]


def test_tokens_run_on_demand_only():
    made = compile_program(Request(path=GRPO, profile="none"), until="hir").made
    assert [m.name for m in made] == ["ast", "hir"]


# ---- every rule has a fault that it finds


def step_of(name):
    return next(step for step in PASSES if step.name == name)


def broken(state, name, product):
    with pytest.raises(InternalError) as caught:
        verify(step_of(name), replace(state, **{name: product}))
    assert f"after pass {name}" in str(caught.value)
    return str(caught.value)


def first_changed(items, **changes):
    first, *rest = items
    return (replace(first, **changes), *rest)


def test_tokens_out_of_order(state):
    assert "in order" in broken(state, "tokens", state.tokens[::-1])


def test_a_node_outside_the_text(state):
    far = replace(state.ast.span, end=10**9)
    assert "has a span in the text" in broken(state, "ast", replace(state.ast, span=far))


def with_trainer(program, **changes):
    trainer = replace(program.services["trainer"], **changes)
    return replace(program, services={**program.services, "trainer": trainer})


def test_a_setting_without_a_value(state):
    settings = {k: v for k, v in state.hir.services["trainer"].settings.items() if k != "dtype"}
    said = broken(state, "hir", with_trainer(state.hir, settings=settings))
    assert "service trainer lacks dtype" in said


def test_a_reported_value_that_is_left(state):
    from forgedsl.hir.context import ERROR

    settings = state.hir.services["trainer"].settings
    wrong = Value(value=ERROR, origin=settings["dtype"].origin)
    said = broken(state, "hir", with_trainer(state.hir, settings={**settings, "dtype": wrong}))
    assert "trainer.dtype" in said


def test_a_service_on_no_model(state):
    said = broken(state, "hir", replace(state.hir, models={}))
    assert "declared model: trainer: policy" in said


def test_a_flow_that_reads_upwards(state):
    said = broken(state, "hir", replace(state.hir, flow=state.hir.flow[::-1]))
    assert "reads results of earlier steps" in said


def test_two_nodes_of_one_id(state):
    nodes = first_changed(state.graph.nodes, id=state.graph.nodes[1].id)
    assert "ids and names are unique" in broken(
        state, "graph", replace(state.graph, nodes=nodes, edges=())
    )


def test_nodes_out_of_order(state):
    graph = replace(state.graph, nodes=state.graph.nodes[::-1])
    assert "topological order" in broken(state, "graph", graph)


def test_an_edge_that_is_no_input(state):
    graph = replace(state.graph, edges=state.graph.edges[1:])
    assert "data edges are the inputs" in broken(state, "graph", graph)


def test_a_service_that_is_not_declared(state):
    graph = replace(state.graph, services=("nobody",))
    assert "service nobody" in broken(state, "graph", graph)


def test_a_node_without_slots(state):
    plan = replace(state.plan, slots={**state.plan.slots, "rollout": 0})
    assert "slots of rollout" in broken(state, "plan", plan)


def test_a_gpu_held_twice(state):
    trainer, generator, reference = state.plan.meshes
    meshes = (trainer, replace(generator, places=trainer.places), reference)
    said = broken(state, "plan", replace(state.plan, meshes=meshes))
    assert "GPU 0 of host 0 is held by trainer and generator" in said


def test_degrees_that_do_not_fill_the_processes(state):
    meshes = first_changed(state.plan.meshes, procs=7)
    assert "degrees fill the processes" in broken(state, "plan", replace(state.plan, meshes=meshes))


def test_an_age_that_does_not_follow(state):
    schedule = state.plan.schedule
    worse = replace(schedule, staleness=replace(schedule.staleness, age_bound=0))
    said = broken(state, "plan", replace(state.plan, schedule=worse))
    assert "0 is not (128 + 1 - 2) // 64 = 0" in said


def with_job(state, **changes):
    return replace(state.job, job=state.job.job.model_copy(update=changes))


def test_a_hash_that_does_not_fit(state):
    assert "the hash matches" in broken(state, "job", with_job(state, seed=18))


def test_a_function_that_is_not_there(state):
    assert "function dataset_gsm8k_prompt" in broken(state, "job", with_job(state, program="x = 1"))


def test_a_job_that_names_this_machine(state):
    folder = str(GRPO.parent.resolve())
    job = state.job.job
    origins = {**job.origins, "policy": f"{folder}/grpo_math.forge:1:1"}
    assert "named relative to it" in broken(state, "job", with_job(state, origins=origins))
    source = LocalModel(path=folder, sha256="")
    models = {"policy": job.models["policy"].model_copy(update={"source": source})}
    assert f"named relative to it: {folder}" in broken(state, "job", with_job(state, models=models))


def test_a_path_of_this_machine_that_the_file_names_is_no_bug_of_ours(tmp_path):
    text = SUMS.replace("forge 1\n", f'forge 1\ncheckpoint {{ export = hf("{tmp_path}/out") }}\n')
    assert text != SUMS
    (tmp_path / "sums.forge").write_text(text)
    compiled = compile_program(Request(path=tmp_path / "sums.forge"))
    assert not compiled.loaded.reporter.has_errors
    assert compiled.state.job.job.checkpoint.export == f"{tmp_path}/out"


def test_a_file_in_the_root_compiles(tmp_path):
    (tmp_path / "sums.forge").write_text(SUMS)
    state = compile_program(Request(path=tmp_path / "sums.forge")).state
    at_root = replace(state, request=replace(state.request, path=Path("/sums.forge")))
    verify(step_of("job"), at_root)


def test_the_same_file_in_two_folders_is_the_same_job(tmp_path):
    jobs = []
    for name in ("one", "other/deeper"):
        path = tmp_path / name / "sums.forge"
        path.parent.mkdir(parents=True)
        path.write_text(SUMS)
        jobs.append(compile_program(Request(path=path)).state.job.job)
    assert jobs[0] == jobs[1]


# ---- looking at them


def forgec(*words, env=None):
    return CliRunner().invoke(app, list(words), env=env)


@pytest.mark.parametrize("name", ["hir", "graph"])
def test_print_after_shows_the_text_form(name, state):
    done = forgec("plan", str(GRPO), "--profile", "cluster", "--print-after", name)
    assert done.exit_code == 0
    text = re.split(r"# ---- after \w+: .*\n|\n(?:info|warning)\[", done.stderr)[1]
    externals = {"program": state.hir} if name == "plan" else {}
    made = print_ir(getattr(state, name), state.loader.sources, externals=externals)
    assert text.strip() == made.strip()
    assert "placement" in done.stdout


def test_print_after_takes_several_and_any_command_that_compiles(tmp_path):
    words = ("--profile", "cpu", "--print-after", "tokens", "--print-after", "job")
    done = forgec("build", str(GRPO), "-o", str(tmp_path), "--emit", "math", *words)
    assert re.findall(r"# ---- after (\w+)", done.stderr) == ["tokens", "job"]


def test_print_after_of_a_run_that_is_refused_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ("--profile", "gpu1", "--run-dir", str(tmp_path / "run"))
    done = forgec("run", str(GRPO), *words, "--print-after", "graph", "--timings")
    assert "P203" in done.stderr
    assert re.findall(r"# ---- after (\w+)", done.stderr) == ["graph"]
    assert re.search(r"^graph +[\d.]+ ", done.stderr, re.MULTILINE)


def test_print_after_of_a_simulation_and_of_a_lock(tmp_path):
    lock = ("lock", str(GRPO), "-o", str(tmp_path / "lock"))
    for words in (("sim", str(GRPO), "--steps", "1"), lock):
        done = forgec(*words, "--profile", "cpu", "--print-after", "hir")
        assert (done.exit_code, re.findall(r"# ---- after (\w+)", done.stderr)) == (0, ["hir"])


def test_what_is_compiled_has_no_passes_to_print(tmp_path):
    done = forgec("run", str(tmp_path / "job.json"), "--print-after", "hir")
    assert done.exit_code == 2
    assert "already compiled, so --print-after hir cannot be applied" in done.stderr


@pytest.mark.parametrize("command", ["plan", "run", "sim", "lock"])
def test_an_unknown_pass_is_refused(command):
    done = forgec(command, str(GRPO), "--print-after", "grph")
    assert done.exit_code == 2
    assert "`graph`" in done.stderr


def test_timings_name_every_pass():
    done = forgec("plan", str(GRPO), "--profile", "cpu", "--timings")
    rows = [line.split()[0] for line in done.stderr.splitlines() if re.match(r"\w+ +[\d.]+ ", line)]
    assert rows == ["ast", "hir", "graph", "plan", "job", "all"]


def test_forge_log_asks_for_timings_too():
    said = forgec("plan", str(GRPO), "--profile", "cpu", env={"FORGE_LOG": "passes"}).stderr
    assert re.search(r"^graph +[\d.]+ +[\d.]+ +8 nodes, 11 edges$", said, re.MULTILINE)


def test_forge_log_prints_passes_in_any_command():
    done = forgec("graph", str(GRPO), "--profile", "cpu", env={"FORGE_LOG": "graph,nonsense"})
    assert re.findall(r"# ---- after (\w+)", done.stderr) == ["graph"]


def test_the_view_of_the_passes_names_them():
    from forgedsl.cli.graph import drawing_of

    drawing = drawing_of(GRPO, profile="cluster", overrides=())
    assert [p.name for p in drawing._passes()] == list(names())


@pytest.mark.parametrize("command", ["plan", "build", "graph", "run"])
def test_commands_take_overrides_from_toml(command, tmp_path):
    (tmp_path / "mine.toml").write_text("[trainer]\nprocs = 3\n")
    out = [] if command in ("plan", "graph") else ["-o", str(tmp_path / "out")]
    out = ["--run-dir", str(tmp_path / "run")] if command == "run" else out
    words = ["--profile", "none", "--set-file", str(tmp_path / "mine.toml"), *out]
    done = forgec(command, str(GRPO), *words)
    assert "parallel degrees" in done.stderr or "P201" in done.stderr, done.output
    missing = forgec(command, str(GRPO), "--set-file", str(tmp_path / "none.toml"), *out)
    assert missing.exit_code == 1
    assert "cannot read" in missing.stderr
