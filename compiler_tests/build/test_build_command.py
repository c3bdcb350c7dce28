"""`forgec build` as a user calls it: what it writes, and what it refuses."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from forge_commands import CliRunner

from forgedsl.build.artifacts import EMITS
from forgedsl.cli.app import app
from forgedsl.launchers.slurm import clock
from forgedsl.lower.hosts import num_hosts
from forgedsl.lower.job import Job

ROOT = Path(__file__).parents[2]
GRPO = str(ROOT / "pipelines" / "grpo_math.forge")


def forgec(*words):
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all")
    done = forgec("build", GRPO, "-o", str(folder), "--profile", "cluster", "--emit", "all")
    assert done.exit_code == 0, done.output
    return folder, done.stdout


def test_all_names_every_file(everything):
    folder, said = everything
    there = {str(p) for p in folder.rglob("*") if p.is_file()}
    assert set(said.split()) == there
    names = "tokens.txt ast.ir hir.ir graph.ir graph.svg plan.ir plan.json job.json main.py "
    names += "functions.py losses/grpo.py losses/grpo_kernels.py losses/grpo.tree losses/grpo.math "
    names += "job.sbatch k8s.yaml"
    assert there == {str(folder / name) for name in names.split()}


def test_the_help_lists_every_name():
    said = forgec("build", "--help").output
    assert all(re.search(rf"\b{emit.name}\b", said) for emit in EMITS)


def test_building_twice_writes_the_same_bytes(everything, tmp_path):
    first, _ = everything
    forgec("build", GRPO, "-o", str(tmp_path), "--profile", "cluster", "--emit", "all")
    for path in first.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / path.relative_to(first)).read_bytes(), path


def test_math_and_kernels_come_from_the_declared_loss(everything):
    folder, _ = everything
    assert "d loss / d logprob" in (folder / "losses/grpo.math").read_text()
    assert "@triton.jit" in (folder / "losses/grpo_kernels.py").read_text()
    assert "def gradient(x, sums):" in (folder / "losses/grpo.py").read_text()


def test_tokens_are_the_words_of_the_text(everything):
    lines = (everything[0] / "tokens.txt").read_text().splitlines()
    assert lines[0].split() == ["1:1", "FORGE", "forge"]
    assert any(line.split() == ["82:3", "SYNC", "sync"] for line in lines)


def test_emit_takes_lists_and_repetition(tmp_path):
    words = ("build", GRPO, "-o", str(tmp_path), "--profile", "cpu")
    done = forgec(*words, "--emit", "job,math", "--emit", "torch")
    assert done.exit_code == 0
    found = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"job.json", "grpo.math", "grpo.py"}


def test_an_unknown_name_is_refused_with_a_suggestion(tmp_path):
    done = forgec("build", GRPO, "-o", str(tmp_path), "--emit", "pyton")
    assert done.exit_code == 2
    assert "`pyton`" in done.stderr
    assert "`python`" in done.stderr


def test_errors_of_the_file_write_nothing(tmp_path):
    file = tmp_path / "bad.forge"
    file.write_text("forge 1\nmodel m { sorce = random(0) }\n")
    done = forgec("build", str(file), "-o", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert not (tmp_path / "out").exists()


# ---- launchers


def directives(text):
    return dict(
        (line.removeprefix("#SBATCH --").partition("=")[::2])
        for line in text.splitlines()
        if line.startswith("#SBATCH")
    )


def test_sbatch_asks_for_what_the_plan_places(everything, golden):
    text = (everything[0] / "job.sbatch").read_text()
    asked = directives(text)
    assert (asked["nodes"], asked["gpus-per-node"]) == ("4", "8")
    assert (asked["partition"], asked["time"]) == ("gpu", "12:00:00")
    golden("grpo_math/cluster/job.sbatch", text)


def test_sbatch_is_a_shell_script(everything):
    done = subprocess.run(
        ["bash", "-n", everything[0] / "job.sbatch"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_manifests_are_one_pod_a_host(everything, golden):
    text = (everything[0] / "k8s.yaml").read_text()
    service, job = yaml.safe_load_all(text)
    assert service["spec"]["clusterIP"] == "None"
    pod = job["spec"]["template"]["spec"]
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (4, 4)
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    script = container["args"][0]
    assert "forgec run job.json" in script
    checked = subprocess.run(["bash", "-n"], input=script, text=True, check=False)
    assert checked.returncode == 0
    golden("grpo_math/cluster/k8s.yaml", text)


def test_manifests_are_as_kubernetes_publishes_them(everything, tmp_path):
    """By its schemas, which name every field; also those of one host, with all settings."""
    published = pytest.importorskip("kubernetes_validate")  # requirements/dev.txt
    words = ("build", GRPO, "-o", str(tmp_path), "--host", "1xH200", "--emit", "k8s")
    sized = ("cluster.cpus=64", "cluster.memory=512GiB")
    assert forgec(*words, "--set", KUBERNETES, *sized).exit_code == 0
    texts = [(folder / "k8s.yaml").read_text() for folder in (everything[0], tmp_path)]
    found = [manifest for text in texts for manifest in yaml.safe_load_all(text)]
    for manifest in found:
        for version in (
            "1.31",
            published.latest_version(),
        ):  # successPolicy is on by default since 1.31
            published.validate(manifest, version, strict=True)
    assert [manifest["kind"] for manifest in found] == ["Service", "Job", "Job"]


def test_both_schedulers_are_asked_for_what_a_run_uses(everything):
    folder = everything[0]
    slurm = (folder / "job.sbatch").read_text()
    _, pods = yaml.safe_load_all((folder / "k8s.yaml").read_text())
    job = Job.model_validate_json((folder / "job.json").read_text())
    asked = directives(slurm)
    assert int(asked["nodes"]) == pods["spec"]["completions"] == num_hosts(job)
    pod = pods["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    used = [p.gpus for service in job.services.values() for p in service.mesh.places]
    assert int(asked["gpus-per-node"]) == gpus == 1 + max(map(max, used))
    assert asked["signal"] == f"B:TERM@{pod['terminationGracePeriodSeconds']}"
    for script in (slurm, container["args"][0]):
        assert "exec forgec run job.json --run-dir" in script
    workers = next(e["value"] for e in container["env"] if e["name"] == "FORGE_WORKERS")
    assert len(workers.split(",")) == num_hosts(job)


KUBERNETES = 'launcher=kubernetes("rl", image="registry.example/forge:1", labels=["team=rl"])'


def test_launcher_settings_reach_the_manifest(tmp_path):
    words = ("build", GRPO, "-o", str(tmp_path), "--host", "1xH200", "--emit", "k8s,sbatch")
    done = forgec(*words, "--set", KUBERNETES)
    assert done.exit_code == 0, done.output
    (job,) = yaml.safe_load_all((tmp_path / "k8s.yaml").read_text())
    assert job["metadata"]["namespace"] == "rl"
    assert job["spec"]["template"]["metadata"]["labels"]["team"] == "rl"
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "registry.example/forge:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    script = (tmp_path / "job.sbatch").read_text()
    assert directives(script)["nodes"] == "1"
    assert "srun" not in script


@pytest.mark.parametrize(("emit", "file", "words"), [
    ("k8s", "k8s.yaml", "so the settings of `kubernetes` (namespace, image, service_account, "),
    ("sbatch", "job.sbatch", "so the settings of `slurm` (partition, time, account, qos, "),
])  # fmt: skip
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_manifest_for_another_launcher_says_what_is_by_default(
    emit: str, file: str, words: str, hosts: int, tmp_path: Path
) -> None:
    asked = ("--profile", "cpu", "--set", f"cluster.hosts={hosts}", "generator.replicas=2")
    done = forgec(
        "build", GRPO, "-o", str(tmp_path), "--emit", emit, *asked, "--set", "launcher=process"
    )
    assert done.exit_code == 0, done.output
    said = f"The program has `launcher = process`, {words}"
    assert f"note: {file}: {said}" in done.stderr
    assert f"# {said}" in (tmp_path / file).read_text()
    nowhere = "`process` starts its 2 hosts itself instead of using the requested" in done.stderr
    assert nowhere == (hosts == 2)


@pytest.mark.parametrize(
    ("emit", "launcher"), [("k8s", KUBERNETES), ("sbatch", 'launcher=slurm("gpu")')]
)
def test_a_manifest_of_the_programs_launcher_has_what_it_says(
    emit: str, launcher: str, tmp_path: Path
) -> None:
    done = forgec(
        "build", GRPO, "-o", str(tmp_path), "--host", "1xH200", "--emit", emit, "--set", launcher
    )
    assert (done.exit_code, "The program has" in done.stderr) == (0, False)


def test_times_as_slurm_takes_them():
    assert clock(59) == "00:00:59"
    assert clock(36 * 3600 + 61) == "1-12:01:01"


def test_names_reach_scripts_as_words(tmp_path):
    """A run may be called anything; what is submitted may not execute it."""
    words = ("build", GRPO, "-o", str(tmp_path), "--host", "1xH200", "--emit", "sbatch,k8s")
    done = forgec(*words, "--set", 'run.name="a $(touch x) \'b"')
    assert done.exit_code == 0, done.output
    script = (tmp_path / "job.sbatch").read_text()
    assert directives(script)["job-name"] == "a-touch-x-b"
    assert "$(" not in "".join(x for x in script.splitlines() if not x.startswith("# "))
    (job,) = yaml.safe_load_all((tmp_path / "k8s.yaml").read_text())
    assert job["metadata"]["name"] == "a-touch-x-b"
