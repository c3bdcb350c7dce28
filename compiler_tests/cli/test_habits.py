"""What people type by habit: version, help, other tools' commands, standard input, YAML."""

import io
import sys
from pathlib import Path

import pytest

from forgedsl import api
from forgedsl.cli import fmt, lint, main
from forgedsl.mistakes.common import BLOCKS
from forgedsl.schema import KINDS, SERVICES, SINGLETONS
from forgedsl.services.vllm.facts import ENGINE_ARGUMENTS

ROOT = Path(__file__).parents[2]
GRPO = ROOT / "pipelines/grpo_math.forge"


def forgec(monkeypatch, *words):
    """Exit code of the command line."""
    monkeypatch.setattr("sys.argv", ["forgec", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return ended.value.code or 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["version"], "forgec 0."),
        (["--version"], "forgec 0."),
        (["help"], "usage: forgec COMMAND [OPTIONS]"),
        (["help", "run"], "usage: forgec run [OPTIONS]"),
        (["help", "lint"], "usage: forgec lint"),
    ],
)
def test_version_and_help_as_other_tools_have_them(words, said, monkeypatch, capsys):
    assert forgec(monkeypatch, *words) == 0
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("trian", "did you mean `run`?"),
        ("train", "did you mean `run`?"),
        ("resume", "did you mean `run --resume RUN`?"),
        ("grpah", "did you mean `graph`?"),
        ("frobnicate", "see `forgec --help`"),
    ],
)
def test_an_unknown_command_is_said_in_one_line(word, hint, monkeypatch, capsys):
    assert forgec(monkeypatch, word, "x.forge") == 2
    assert capsys.readouterr().err == f"forgec: no command `{word}`; {hint}\n"


@pytest.mark.parametrize("command", [lint, fmt])
def test_a_folder_without_files_is_bad_usage(command, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([str(tmp_path)])
    assert ended.value.code == 2
    assert f"no .forge file in {tmp_path}" in capsys.readouterr().err


# ---- lint --stdin


def given(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_lint_reads_standard_input_as_the_file_named(monkeypatch, capsys):
    given(monkeypatch, GRPO.read_text().replace("max_policy_age = 1", "max_policy_aeg = 1"))
    assert lint.main(["--stdin", str(GRPO)]) == 1
    out = capsys.readouterr().out
    assert f"--> {GRPO}:" in out
    assert "X803" not in out, "paths are relative to the file named"


def test_lint_reads_standard_input_without_a_name(monkeypatch, capsys):
    given(monkeypatch, "dataset d {\n  target = { a = row.x }\n}\n")
    assert lint.main(["--stdin"]) == 1
    assert " --> <stdin>:2:12\n" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--stdin", "--fix"], ["--stdin", "a", "b"], []])
def test_lint_needs_something_to_check(words, capsys):
    with pytest.raises(SystemExit) as ended:
        lint.main(words)
    assert ended.value.code == 2


# ---- blocks


def test_a_dotted_block_is_a_block_in_a_block(tmp_path):
    text = GRPO.read_text()
    for body in (
        "engine.extra { revision = 3, a { b = 1 } }",
        "engine { extra { revision = 3, a.b = 1 } }",
    ):
        file = tmp_path / "x.forge"
        file.write_text(text.replace('mesh_name = "gen"', f'mesh_name = "gen"\n  {body}'))
        settings = api.load(file, profile="none").checked.services["generator"].settings
        found = {name: settings[name].value for name in settings if name.startswith("engine.extra")}
        assert found == {"engine.extra.revision": 3, "engine.extra.a.b": 1}


def test_extra_arguments_of_the_engine_reach_the_job(tmp_path):
    from forgedsl.passes import Request, compile_program

    overrides = ("generator.engine.extra.revision=3", "generator.engine.extra.a.b=1")
    state = compile_program(Request(path=GRPO, profile="cpu", overrides=overrides)).state
    assert state.job.job.services["generator"].extra == {"revision": 3, "a": {"b": 1}}


@pytest.mark.parametrize("name", ["dtype", "max_model_len", "tensor_parallel_size"])
def test_arguments_that_the_runtime_sets_are_no_extras(name):
    loaded = api.load(GRPO, profile="none", overrides=(f"generator.engine.extra.{name}=2",))
    (found,) = loaded.reporter
    assert (found.code, found.help) == ("F103", dict(ENGINE_ARGUMENTS)[name])


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_whatever_the_runtime_sets_is_refused_as_an_extra(device):
    from forgedsl.lower import job
    from forgedsl_runtime.services.vllm.upstream.engine import EngineRank, _arguments
    from forgedsl_runtime.services.vllm.upstream.tenants import Tenants

    service = job.VllmService(
        model="policy", mesh=job.Mesh(name="gen", device=device), dtype="f32", gpu_memory=0.5,
        sampling=job.Sampling(max_tokens=16),
    )  # fmt: skip
    model = job.Model(source=job.RandomModel(seed=1), dtype="f32", context=256)
    engine_rank = EngineRank(rank=0, ranks=1, rendezvous_file=Path("x"))
    mine = _arguments(service, model, Path("x"), 1, engine_rank, tenants=Tenants({}))
    tunable = {"max_num_batched_tokens"} | (
        {"enable_chunked_prefill"} if device == "cpu" else set()
    )
    assert set(mine) - tunable <= dict(ENGINE_ARGUMENTS).keys()


def test_the_parser_knows_what_is_written_with_a_block():
    kinds = (*KINDS.values(), *SERVICES.values())
    blocks = {part for kind in kinds for block in kind.blocks for part in block.split(".")}
    singletons = {name for name in SINGLETONS if not KINDS[name].single}
    assert {name for name in blocks | singletons if name} == BLOCKS


# ---- fixes


def fixed(tmp_path, text, *words):
    """The text after `lint --fix`."""
    file = tmp_path / "x.forge"
    file.write_text(text)
    lint.main([str(file), "--fix", *words])
    return file.read_text()


def test_a_block_where_a_value_belongs_is_not_rewritten(tmp_path, capsys):
    text = "dataset d {\n  target = { a = row.x }\n}\n"
    assert fixed(tmp_path, text) == text
    assert "`target` takes one value" in capsys.readouterr().out


ALLOWED = (
    'model m { source = hf("x/y") }\ncheckpoint { every = 5 }  # forge: allow[A303] my words\n'
)


def test_a_reason_somebody_wrote_is_removed_only_on_demand(tmp_path):
    assert fixed(tmp_path, ALLOWED) == ALLOWED
    after = fixed(tmp_path, ALLOWED, "--unsafe-fixes")
    assert after == ALLOWED.replace("  # forge: allow[A303] my words", "")


def test_a_suppression_is_not_unused_because_of_overrides(capsys, tmp_path):
    file = tmp_path / "x.forge"
    file.write_text(ALLOWED)
    lint.main([str(file), "checkpoint.every=6"])
    assert "N903" not in capsys.readouterr().out


# ---- --set-file


YAML = """
trainer:
  optimizer: {lr: 1e-5, betas: [0.9, 9.5e-1]}
  procs: 2
schedule.steps: 7
generator:
  sampling: {stop: ["</s>", 'a"b'], top_k: null}
run: {name: my run}
"""


def test_overrides_from_yaml(tmp_path):
    (tmp_path / "mine.yaml").write_text(YAML)
    program = api.load(GRPO, profile="none", set_files=[tmp_path / "mine.yaml"]).checked
    trainer, sampler = program.services["trainer"].settings, program.services["generator"].settings
    assert (trainer["optimizer.lr"].value, trainer["optimizer.betas"].value) == (1e-5, [0.9, 0.95])
    assert (sampler["sampling.stop"].value, sampler["sampling.top_k"].value) == (
        ["</s>", 'a"b'],
        None,
    )
    assert program.singletons["run"].settings["name"].value == "my run"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("a: [1\nb: 2", "F121", "is not YAML: expected ',' or ']', but got ':' in line 2"),
        ("- a\n", "F121", "is not YAML: its top level must be a mapping of names to values"),
        ("trainer: {procs: many}", "F101", "undefined name `many`"),
        ("trainer: {proc: 3}", "F103", "`proc`"),
    ],
)
def test_yaml_has_the_same_diagnostics(text, code, said, tmp_path):
    (tmp_path / "mine.yml").write_text(text)
    (found,) = api.load(GRPO, profile="none", set_files=[tmp_path / "mine.yml"]).reporter
    assert found.code == code
    assert said in found.message


def test_overrides_from_json(tmp_path):
    (tmp_path / "mine.json").write_text('{"group": 4, "trainer": {"optimizer": {"lr": 1e-5}}}')
    program = api.load(GRPO, profile="none", set_files=[tmp_path / "mine.json"]).checked
    assert program.params["group"].value == 4
    assert program.services["trainer"].settings["optimizer.lr"].value == 1e-5


def test_json_without_names_is_a_diagnostic(tmp_path):
    (tmp_path / "mine.json").write_text("[1]")
    (found,) = api.load(GRPO, profile="none", set_files=[tmp_path / "mine.json"]).reporter
    assert found.message.endswith("is not JSON: its top level must be a mapping of names to values")


# ---- what is not installed


def test_a_stack_that_is_not_installed_is_said_with_the_command_that_installs_it(
    monkeypatch, capsys
):
    from forgedsl.cli import main

    def launch(_):
        raise ModuleNotFoundError("No module named 'psutil'", name="psutil")

    monkeypatch.setattr(main, "app", launch)
    assert forgec(monkeypatch, "run", "x.forge") == 4
    said = capsys.readouterr().err
    assert said.startswith("forgec: this needs the package `psutil`, which is not installed here;")
    lock = Path(said.split()[-1])
    assert lock.name in ("cpu.txt", "gpu.txt")
    assert lock.read_text() == (ROOT / "requirements" / lock.name).read_text()
    assert "install --no-deps -r" in said


def test_locks_travel_with_the_package():
    import tomllib

    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "requirements/*.txt" in data["package-data"]["forgedsl"]


@pytest.mark.parametrize("words", [("replay", "nope"), ("report", "nope"), ("diff", "a", "b")])
def test_what_is_not_there_is_bad_usage_said_once(words, monkeypatch, capsys):
    assert forgec(monkeypatch, *words) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("written", "help_text"),
    [
        ("process(3)", "`launcher = process`; `cluster { hosts = 3 }` sets the number of hosts"),
        (
            "process(hosts = 3)",
            "`launcher = process`; `cluster { hosts = 3 }` sets the number of hosts",
        ),
        ("process(3 hosts)", "to set the number of hosts, write `cluster { hosts = ... }`"),
        ("local(3)", "`launcher = local`; `procs` of a service sets the number of its processes"),
        ('ssh("a", "b")', 'write `ssh(["a", "b"])`'),
        ("ssh(hosts = 2)", 'write a list: `["NAME", "NAME"]`'),
        ("ssh(hosts = [a])", '`hosts` of `ssh` is a string: `"a"`'),
        ("slurm(partition = gpu)", '`partition` of `slurm` is a string: `"gpu"`'),
        ('slurm("gpu", time = "12:00:00")', "write `12h`"),
        ('slurm("gpu", time = "1:30:00")', "write `90min`"),
        ('slurm("gpu", hosts = 2)', "here it is `hosts` of the cluster"),
        ('slurm { partition = "gpu" }', '`launcher = slurm(partition = "gpu")`'),
        ('"local"', "write `local`"),
        ("k8s", "here it is `kubernetes(namespace = ..., image = ...)`"),
    ],
)
def test_launchers_as_one_half_remembers_them(written, help_text):
    text = f"{GRPO.read_text()}\nlauncher = {written}\n"
    found = api.load_text(text, "test.forge", folder=GRPO.parent)
    assert [d.help for d in found.reporter if d.severity == "error"] == [help_text]
