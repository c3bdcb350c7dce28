"""Which host `plan`, `graph`, `sim`, `build` and a rehearsal plan for, and that they say so."""

import json
from pathlib import Path

import pytest
from forge_commands import CliRunner

from forgedsl.cli import host as here
from forgedsl.cli.app import app

GRPO = str(Path(__file__).parents[2] / "pipelines/grpo_math.forge")
SIZES = {"cpus": 4, "memory": 64 * 2**30, "hosts": 1}
NONE = {**SIZES, "gpus": 0, "gpu": "", "gpu_memory": 0}
ONE = {**SIZES, "gpus": 1, "gpu": "H100", "gpu_memory": 80 * 2**30}


def forgec(*words):
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def laptop(monkeypatch):
    monkeypatch.setattr(here, "detect_host", lambda: NONE)


@pytest.mark.parametrize("command", ["plan", "graph", "sim"])
def test_commands_take_this_host_and_the_profile_it_would_pick(command, laptop):
    done = forgec(command, GRPO, *(["--view", "mesh"] if command == "graph" else []))
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("profile cpu was selected automatically: this host has no GPU\n")
    assert "1 host: no GPU, 4 cpus, 64 GiB (this host)" in done.stdout


def test_another_host_picks_another_profile(monkeypatch):
    monkeypatch.setattr(here, "detect_host", lambda: ONE)
    done = forgec("plan", GRPO)
    assert "profile gpu1 was selected automatically: this host has one GPU" in done.stderr
    assert "1 host: 1 x H100 (80 GiB), 4 cpus, 64 GiB (this host)" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "8xH100"), "1 host: 8 x H100 (80 GiB), 96 cpus, 1024 GiB (assumed: --host 8"),
        (("--profile", "cluster"), "8 x H200 (141 GiB), 96 cpus, 1024 GiB (assumed: profile clus"),
        (("--host", "cpu"), "1 host: no GPU, 96 cpus, 1024 GiB (assumed: --host cpu)"),
        (("--profile", "none", "cluster.gpus=8"), "(assumed: --set cluster.gpus=8)"),
    ],
)
def test_an_assumed_host_is_marked(words, said, laptop):
    done = forgec("plan", GRPO, *words)
    assert done.exit_code == 0, done.output
    assert said in done.stdout


def test_a_plan_that_does_not_fit_this_host_is_exit_four_and_says_what_to_do(laptop):
    done = forgec("plan", GRPO, "--profile", "none")
    assert done.exit_code == 4
    assert "error[P203]: this host has no GPU, but the plan needs 8" in done.stderr
    assert "planned for this host; to plan for another one: --host 8xH200" in done.stderr


@pytest.mark.parametrize("text", ["8xH10", "x8", "0xH100", "eight"])
def test_a_host_that_is_none_is_refused(text, laptop):
    done = forgec("plan", GRPO, "--host", text)
    assert done.exit_code == 2
    assert done.stderr.startswith("forgec plan: --host: ")


def test_a_cluster_larger_than_this_host_borrows_nothing_from_it(laptop, tmp_path):
    file = tmp_path / "x.forge"
    text = Path(GRPO).read_text().replace("profile cpu when cluster.gpus == 0", "profile cpu")
    text = text.replace("profile gpu1 when cluster.gpus == 1", "profile gpu1")
    file.write_text(text + '\ncluster { gpus = 8, gpu = "H100" }\n')
    document = json.loads(forgec("plan", str(file), "--format", "json", "beta=0.0").stdout)
    assert [d["code"] for d in document["diagnostics"] if d["severity"] == "error"] == []
    assert document["host"]["gpu_memory"] == 80 * 2**30
    assert document["host"]["said"] == "assumed: `cluster` of the file"


def test_hosts_that_are_not_there_are_counted(laptop, tmp_path):
    done = forgec("plan", GRPO, "--profile", "none", "--host", "8xH200", "trainer.hosts=2")
    assert (
        "the plan needs 2 hosts, but the launcher starts processes on one host only" in done.stderr
    )
    assert "service `trainer` needs 2 hosts, but there is 1" in done.stderr


def test_lint_never_looks_at_the_host(monkeypatch, tmp_path):
    from forgedsl.cli import lint

    monkeypatch.setattr(here, "detect_host", lambda: pytest.fail("lint looked at the host"))
    assert lint.main([GRPO]) == 0


def test_a_host_is_for_a_rehearsal():
    done = forgec("run", GRPO, "--host", "8xH200")
    assert done.exit_code == 2
    assert "--host applies to rehearsals only: add --stub" in done.stderr


def test_a_profile_is_not_its_own_reason(laptop, tmp_path):
    file = tmp_path / "t.forge"
    text = Path(GRPO).read_text().replace('("models/', '("forgedsl:models/')
    begin = "profile cpu when cluster.gpus == 0 {"
    file.write_text(text.replace(begin, f"{begin}\n  cluster.gpus = 0"))
    done = forgec("plan", str(file))
    assert done.stderr.startswith("profile cpu was selected automatically: this host has no GPU\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "2x8xH100"), "the 2 hosts have 16 GPUs, but the plan needs 32"),
        (("--host", "2x8xH100", "cluster.hosts=3"), "the 3 hosts have 24 GPUs"),
        (("--host", "4xB200"), "service `trainer` needs 2 hosts, but there is 1"),
    ],
)
def test_a_host_that_is_asked_for_goes_before_that_of_a_profile(words, said, laptop):
    done = forgec("plan", GRPO, "--profile", "cluster", *words)
    assert (done.exit_code, said in done.stderr) == (4, True), done.output


def test_a_cluster_in_the_file_loses_to_the_host_that_is_asked_for(tmp_path, laptop):
    text = Path(GRPO).read_text("utf-8").replace('local("', 'local("forgedsl:')
    text = text.replace('jsonl("', 'jsonl("forgedsl:')
    cluster = 'cluster { hosts = 1, gpus = 4, gpu = "H100", cpus = 12, memory = 256GiB }\n'
    (tmp_path / "t.forge").write_text(text.replace("forge 1", f"forge 1\n{cluster}", 1))
    words = ("plan", str(tmp_path / "t.forge"), "--profile", "none", "--host", "8xH200")
    done = forgec(*words)
    assert "1 host: 8 x H200 (141 GiB), 12 cpus, 256 GiB (assumed: --host 8xH200" in done.stdout


def test_a_gpu_that_no_run_starts_on_is_refused(laptop):
    done = forgec("plan", GRPO, "--host", "8xMI300X")
    assert done.exit_code == 2
    assert "`MI300X` is not supported, because it has no CUDA" in done.stderr


@pytest.mark.parametrize(
    ("cluster", "code", "said", "remedy"),
    [
        (
            'gpu = "MI300X"',
            "P216",
            "`MI300X` is not supported, because it has no CUDA",
            "supported are `B3",
        ),
        ('gpu = "AMD Instinct MI300X"', "P216", "because it has no CUDA", "supported are `B300`"),
        ('gpu = "H2000"', "F113", "unknown GPU `H2000`", "such as `gpu_memory = 48GiB`"),
        ('gpu = "H2000", gpu_memory = 48GiB', "", "", ""),
        ('gpu = "NVIDIA H100 PCIe"', "", "", ""),
    ],
)
@pytest.mark.parametrize("command", ["lint", "plan"])
def test_a_gpu_of_the_file_that_no_run_starts_on_is_refused_at_its_place(
    tmp_path, laptop, command, cluster, code, said, remedy
):
    text = Path(GRPO).read_text("utf-8").replace('local("', 'local("forgedsl:')
    text = text.replace('jsonl("', 'jsonl("forgedsl:')
    line = f"cluster {{ hosts = 1, gpus = 8, {cluster} }}\n"
    (tmp_path / "t.forge").write_text(text.replace("forge 1", f"forge 1\n{line}", 1))
    done = forgec(command, str(tmp_path / "t.forge"), "--profile", "none")
    shown = done.stdout + done.stderr
    assert (done.exit_code, f"error[{code}]" in shown) == ((1, True) if code else (0, False)), shown
    assert said in shown
    assert remedy in shown
    assert not code or "t.forge:2:38" in shown


def test_a_gpu_that_nothing_uses_is_not_looked_at(tmp_path, laptop):
    file = str(Path(GRPO))
    assert forgec("plan", file, "--profile", "cpu", "--set", 'cluster.gpu="MI300X"').exit_code == 0
