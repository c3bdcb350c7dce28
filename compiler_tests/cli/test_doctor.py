"""`forgec doctor`: a line for each thing that runs need, with a remedy where it is lacking."""

import json
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from forge_commands import CliRunner

from forgedsl.cli import machine
from forgedsl.cli.app import app
from forgedsl.templates import project

GRPO = str(Path(__file__).parents[2] / "pipelines/grpo_math.forge")
FEW = (
    'gsm8k.source=jsonl("data/arithmetic_test.jsonl")',
    'held_out.source=jsonl("data/arithmetic.jsonl")',
)
H200 = ("H200", 140 * 2**30)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No network, no GPU; in an empty folder."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(machine, "detect_gpus", list)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctor(*words):
    return CliRunner().invoke(app, ["doctor", *words])


def state(name):
    """(state, text, remedy) of the checks of a name, on this machine."""
    return [(c.state, c.text, c.remedy) for c in machine.machine_checks() if c.name == name]


def test_this_machine_can_run():
    done = doctor()
    assert done.exit_code == 0, done.output
    names = [line.split()[0] for line in done.stdout.splitlines() if re.match(r"  \w", line)]
    assert [name for name in dict.fromkeys(names) if name != "versions"] == [
        "system", "packages", "gpus", "memory", "shm", "disk", "limits", "ports", "hub",
    ]  # fmt: skip
    assert done.stdout.endswith("nothing is lacking for runs\n")


def test_on_another_system_no_run_starts_and_nothing_else_is_looked_for(monkeypatch):
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    (check,) = machine.machine_checks()
    assert (check.name, check.state) == ("system", "LACKS")
    assert check.remedy.startswith("runs need Linux")


def test_checks_can_be_read_by_a_program():
    found = json.loads(doctor("--format", "json").stdout)
    assert {*found[0]} == {"name", "state", "text", "remedy"}
    assert doctor("--format", "xml").exit_code == 2


def test_a_package_that_is_missing_has_its_command(monkeypatch):
    real = machine.installed
    monkeypatch.setattr(machine, "installed", lambda n: "" if n == "torchmonarch" else real(n))
    ((kind, text, remedy),) = state("packages")
    assert (kind, text) == ("LACKS", "not installed: torchmonarch")
    assert remedy.endswith("cpu.txt")
    assert "pip install --no-deps -r" in remedy
    done = doctor()
    assert done.exit_code == 4
    assert done.stdout.endswith("lacking: packages\n")


def test_another_version_than_the_tested_one_is_noted(monkeypatch):
    real = machine.installed
    monkeypatch.setattr(machine, "installed", lambda n: "1.0" if n == "torch" else real(n))
    ((kind, text, _),) = state("versions")
    assert kind == "note"
    assert text.startswith("torch 1.0 (tested: 2.13.0)")


@pytest.mark.parametrize(
    ("torch", "driver", "kind", "said"),
    [
        ("2.13.0+cpu", "580.65.06", "LACKS", "torch 2.13.0+cpu is built for CPUs"),
        ("2.13.0+cu130", "570.10", "LACKS", "torch 2.13.0+cu130 needs NVIDIA driver 580 or newer"),
        ("2.13.0+cu130", "580.65.06", "ok", "2 x H200, 140 GiB, driver 580.65.06"),
    ],
)
def test_gpus(monkeypatch, torch, driver, kind, said):
    monkeypatch.setattr(machine, "detect_gpus", lambda: [H200, H200])
    monkeypatch.setattr(machine, "_driver", lambda: driver)
    monkeypatch.setattr(machine, "installed", lambda name: torch if name == "torch" else "1")
    ((found, text, remedy),) = state("gpus")
    assert found == kind
    assert said in text + remedy


def test_little_shared_memory(monkeypatch):
    real = machine.shutil.disk_usage

    def usage(path):
        small = SimpleNamespace(total=2**26, used=0, free=2**25)
        return small if str(path) == "/dev/shm" else real(path)

    monkeypatch.setattr(machine.shutil, "disk_usage", usage)
    ((kind, _, remedy),) = state("shm")
    assert kind == "LACKS"
    assert "--shm-size" in remedy


def test_a_hub_that_is_not_reached_is_a_note(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    ((kind, text, remedy),) = state("hub")
    assert kind == "note"
    assert text.startswith("127.0.0.1:9 cannot be reached")
    assert "in the cache" in remedy


def test_a_shipped_file_can_run_here(alone):
    done = doctor(GRPO, "--profile", "cpu", *FEW)
    assert done.exit_code == 0, done.output
    assert "  devices     ok     one host, no GPU\n" in done.stdout
    assert "  models      ok     policy: local files\n" in done.stdout
    assert "  data        ok     gsm8k: 1000 rows\n" in done.stdout
    assert "  rewards     ok     correct, thinking, brevity\n" in done.stdout
    assert done.stdout.endswith(f"nothing is lacking for a run of {GRPO}\n")
    assert list(alone.iterdir()) == []


JUDGE = """service judge : openai("m") { url = "http://127.0.0.1:9/v1", key = "NO_SUCH_KEY" }
reward correct = judge.score(prompt = "Grade {response} from 1 to 5", scale = [1, 5]) {
  effects = [net], timeout = 5s
}"""


def test_what_a_file_lacks_has_its_remedy(alone):
    text = Path(GRPO).read_text().replace('local("', 'local("forgedsl:')
    # trained on the smaller file, whose rows are read faster
    text = text.replace('jsonl("data/arithmetic_test.', 'jsonl("forgedsl:data/demos.')
    text = text.replace('jsonl("data/arithmetic.', 'jsonl("forgedsl:data/arithmetic_test.')
    text = text.replace("data/demos.", "data/arithmetic.")
    text = text.replace("forge 1", 'forge 1\nimport python "grading.py" as own', 1)
    text = re.sub("reward correct .*", JUDGE, text)
    text = re.sub("reward thinking .*", "reward thinking = own.f", text)
    (alone / "grading.py").write_text("import no_such_package\ndef f(response):\n    return 1.0\n")
    (alone / "t.forge").write_text(text)
    done = doctor("t.forge", "--profile", "cpu")
    assert done.exit_code == 4, done.output
    assert "NO_SUCH_KEY is not set; reward correct needs it\n" in done.stdout
    assert "-> export NO_SUCH_KEY=... before the run\n" in done.stdout
    assert (
        "No module named 'no_such_package'; to install a package of this name: pip " in done.stdout
    )
    assert done.stdout.endswith("lacking: rewards, keys, judges\n")
    assert (
        "  judges      LACKS  http://127.0.0.1:9/v1, for reward correct, cannot be" in done.stdout
    )


def test_the_package_of_an_environment_is_looked_for(alone):
    for path, text in project("agent").items():
        (alone / path).parent.mkdir(exist_ok=True)
        (alone / path).write_text(text)
    (script,) = (alone / "agents").glob("*.py")
    script.write_text(script.read_text() + "\nimport no_such_package\n")
    done = doctor("agent.forge")
    assert done.exit_code == 4, done.output
    assert "  environment LACKS  environment game: importing " in done.stdout
    assert ": pip install no_such_package\n" in done.stdout
    assert done.stdout.endswith("lacking: environment\n")


def test_the_program_of_an_agent_is_looked_for_and_not_started(alone):
    for path, text in project("program").items():
        (alone / path).parent.mkdir(exist_ok=True)
        (alone / path).write_text(text)
    done = doctor("program.forge")
    assert done.exit_code == 0, done.output
    assert "  agents      note   game: python3 is here, but it was not started\n" in done.stdout
    assert "`forgec run FILE --dry-run` plays a turn" in done.stdout
    done = doctor("program.forge", "interpreter=/no/such/python")
    assert "  agents      LACKS  game: there is no program /no/such/python\n" in done.stdout
    assert (done.exit_code, done.stdout.endswith("lacking: agents\n")) == (4, True)


def test_a_judge_that_answers_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert machine.unreachable(f"http://127.0.0.1:{server.getsockname()[1]}/v1") == ""
    assert machine.unreachable("http://127.0.0.1:9/v1") == "Connection refused"


def test_a_file_with_mistakes_has_its_diagnostics(alone):
    (alone / "t.forge").write_text("forge 1\nmodel policy {\n")
    done = doctor("t.forge")
    assert done.exit_code == 1
    assert "error[S" in done.stderr


def test_a_folder_that_holds_no_model_is_lacking(alone):
    (alone / "mine").mkdir()
    (alone / "mine/notes.txt").touch()
    done = doctor(GRPO, "--profile", "cpu", *FEW, f'policy.source=local("{alone}/mine")')
    assert done.exit_code == 4, done.output
    assert "mine is not a model folder: it has no config.json\n" in done.stdout
    assert done.stdout.endswith("lacking: models, data\n")  # no tokenizer to read rows with


def test_a_model_that_is_not_in_the_cache_is_a_note(monkeypatch, alone):
    monkeypatch.setenv("HF_HOME", str(alone / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(alone / "hub"))
    done = doctor(GRPO, "--profile", "cpu", *FEW, 'policy.source=hf("no/such")')
    assert "  models      note   policy: " in done.stdout
    assert "is not in the local cache of the Hugging Face hub\n" in done.stdout
    assert "-> the start of a run downloads it from the hub\n" in done.stdout


def hub_with(folder, layers):
    """A cache of the hub with the adapter `me/adapter`, of these layers: name -> shape."""
    import numpy
    from safetensors.numpy import save_file

    repo = folder / "hub/models--me--adapter"
    files = repo / "snapshots/abc"
    files.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs/main").write_text("abc")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    (files / "adapter_config.json").write_text(json.dumps(config))
    tensors = {name: numpy.zeros(shape, dtype="float32") for name, shape in layers.items()}
    save_file(tensors, files / "adapter_model.safetensors")


def with_adapter(folder, monkeypatch, layers):
    monkeypatch.setenv("HF_HOME", str(folder / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hub"))
    if layers:
        hub_with(folder, layers)
    return doctor(GRPO, "--profile", "cpu", *FEW, 'policy.adapter=hf("me/adapter")')


def test_an_adapter_that_is_not_in_the_cache_is_a_note(monkeypatch, alone):
    done = with_adapter(alone, monkeypatch, {})
    assert '  models      note   policy: hf("me/adapter") is not in the local cache' in done.stdout
    assert "-> the start of a run downloads it from the hub\n" in done.stdout


def test_an_adapter_of_the_hub_that_does_not_fit_is_lacking(monkeypatch, alone):
    layer = "base_model.model.model.layers.9.self_attn.q_proj.lora_{}.weight"
    done = with_adapter(alone, monkeypatch, {layer.format("A"): (2, 8), layer.format("B"): (8, 2)})
    assert done.exit_code == 4, done.output
    assert "the adapter does not fit the model: the model has no weight" in done.stdout
