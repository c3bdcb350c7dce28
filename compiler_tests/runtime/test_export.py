"""`forgec export`: a checkpoint becomes a folder that transformers loads, or a repository."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from forge_commands import CliRunner
from synthetic import make_job

from forgedsl.cli.app import app
from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.runs.card import write_card
from forgedsl.shipped import shipped_root
from forgedsl_runtime.checkpoints import check_checkpoint
from forgedsl_runtime.export import create_repository, export, push
from forgedsl_runtime.services.titan.upstream.checkpoints import spoilt

TINY = shipped_root() / "models/tiny_math"


def save_checkpoint(folder: Path) -> None:
    """What torchtitan saves of the shipped model, every weight 1 % larger, without a mesh."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torchtitan.models.qwen3 import Qwen3StateDictAdapter

    from forgedsl_runtime.services.titan.upstream import model as titan

    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=256)
    config = titan.model_spec(model, TINY).model
    state = Qwen3StateDictAdapter(config, str(TINY)).from_hf(load_file(TINY / "model.safetensors"))
    state.setdefault("lm_head.weight", state["tok_embeddings.weight"])
    grown = {name: value * 1.01 for name, value in state.items()}
    dcp.save(grown, checkpoint_id=str(folder), no_dist=True)
    (folder / "controller.json").write_text("{}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with the checkpoints of two steps."""
    from conftest import job_of, titan

    from forgedsl_runtime.services.titan.upstream.model import select_device

    select_device("cpu")
    folder = tmp_path_factory.mktemp("run")
    step = spec.Node(
        id="s", name="s", op="step", target="trainer", inputs=(), level="batch", origin=""
    )
    job = job_of(services={"trainer": titan()}, nodes=(step,))
    (folder / "job.json").write_text(job.model_dump_json())
    for number in (2, 4):
        save_checkpoint(folder / f"checkpoints/step-{number}")
    return folder


def forgec(*args: str) -> Any:
    return CliRunner().invoke(app, ["export", *args])


def test_a_run_that_trained_all_weights_has_no_adapter(trained: Path, tmp_path: Path) -> None:
    done = forgec(str(trained), "--adapter", "--to", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "trained all weights, so it has no adapter: leave out --adapter" in done.output
    assert not (tmp_path / "out").exists()


def test_an_adapter_of_layers_that_files_join_is_not_exported_alone(
    trained: Path, tmp_path: Path
) -> None:
    size = {
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    }  # fmt: skip
    folder = tmp_path / "phi"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "phi3", **size}))
    job = spec.read_job(trained)
    source = spec.LocalModel(path=str(folder), sha256="")
    models = {name: model.model_copy(update={"source": source})
              for name, model in job.models.items()}  # fmt: skip
    (tmp_path / "job.json").write_text(job.model_copy(update={"models": models}).model_dump_json())
    with pytest.raises(LaunchError, match="files of phi3 join layers that the adapter adapts"):
        export(tmp_path, 4, tmp_path / "out", adapter=True)
    assert not (tmp_path / "out").exists()


def test_the_export_is_the_checkpoint_and_loads_in_transformers(
    trained: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = export(trained, 4, tmp_path / "out")
    before = AutoModelForCausalLM.from_pretrained(TINY).state_dict()
    after = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert after.keys() == before.keys()
    assert all(torch.allclose(after[name], 1.01 * before[name]) for name in before)
    assert AutoTokenizer.from_pretrained(folder)("1+2=").input_ids
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"


def test_the_newest_checkpoint_goes_into_the_run_folder(trained: Path) -> None:
    done = forgec(str(trained))
    assert (done.exit_code, done.stdout.strip()) == (0, str(trained / "exports/step-4"))
    assert (trained / "exports/step-4/model.safetensors").is_file()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("RUN", "--step", "3"), "no checkpoint of step 3; it has 2, 4"),
        (("RUN", "--to", "RUN"), "is not empty"),
        (("RUN/checkpoints",), "is not a run folder"),
    ],
)
def test_what_cannot_be_exported_is_said(
    trained: Path, args: tuple[str, ...], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    done = forgec(*(arg.replace("RUN", str(trained)) for arg in args))
    assert done.exit_code == 2
    assert text in done.output


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload asks for; `seen` are paths and bodies."""

    seen: list[tuple[str, str]]
    has_card = False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        self.seen.append((self.path, body))
        url = f"http://{self.headers['Host']}/me/sums"
        answer: dict[str, Any] = {"url": url, "name": "me/sums"}
        if "preupload" in self.path:
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = [
                {"path": f, "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for f in files
            ]
            answer = {"files": modes}
        elif "commit" in self.path:
            answer = {"success": True, "commitOid": "1", "commitUrl": f"{url}/commit/1"}
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        card = {"type": "file", "path": "README.md", "size": 2, "oid": "1"}
        text = json.dumps([card] if self.has_card else []).encode()
        self.send_response(200 if "/tree/" in self.path else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _chunks(self) -> str:
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        return found.decode()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """A hub on the loopback; what it was asked."""
    from huggingface_hub import constants

    Hub.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield Hub.seen
    finally:
        server.shutdown()
        server.server_close()


def test_a_push_makes_a_private_repository_and_commits_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with hub(monkeypatch) as seen:
        create_repository("me/sums")
        push(tmp_path, "me/sums")
    made = next(json.loads(body) for path, body in seen if path.endswith("/repos/create"))
    assert made == {"name": "sums", "organization": "me", "visibility": "private"}
    commit = next(body for path, body in seen if "/commit/" in path)
    assert "config.json" in commit


def test_a_hub_that_cannot_be_reached_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(LaunchError, match="hf upload me/sums FOLDER"):
        create_repository("me/sums")


def test_a_repository_that_is_misspelt_is_not_a_folder(trained: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(trained), "--to", "hf(my sums)"])
    assert done.exit_code == 2
    assert "hf(my sums) names no repository" in done.stderr
    assert not Path("hf(my sums)").exists()


def test_a_checkpoint_that_is_cut_is_named(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (part,) = (run / "checkpoints/step-4").glob("*.distcp")
    part.write_bytes(part.read_bytes()[:1000])
    with pytest.raises(LaunchError, match=r"the checkpoint .*step-4: .*distcp"):
        export(run, 4, tmp_path / "out")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def overwrite(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("__0_0.distcp", cut, r"__0_0\.distcp is truncated: it has 1,000 of [\d,]+ bytes"),
        ("__0_0.distcp", overwrite, r"__0_0\.distcp is corrupt at byte 0"),
        ("__0_0.distcp", Path.unlink, r"__0_0\.distcp: No such file"),
        (".metadata", cut, r"\.metadata is corrupt \(UnpicklingError"),
    ],
)
def test_a_resume_names_a_spoilt_file_and_what_to_go_on_from(
    trained: Path, tmp_path: Path, name: str, spoil: Any, said: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    check_checkpoint(run, 4, spoilt)
    spoil(run / "checkpoints/step-4" / name)
    away = f"mv {run}/checkpoints/step-4 {run}/spoilt-step-4 && forgec run --resume {run}"
    with pytest.raises(LaunchError, match=f"step 4 .*{said}.*step 2 is complete.*{away}$"):
        check_checkpoint(run, 4, spoilt)
    spoil(run / "checkpoints/step-2" / name)
    with pytest.raises(LaunchError, match=f"no earlier checkpoint .* forgec run {run}/job.json$"):
        check_checkpoint(run, 4, spoilt)


# ---- the model card


def test_the_model_card(golden: Any, tmp_path: Path) -> None:
    """A run of the shipped pipeline with data of the hub, exported before its end."""
    import yaml

    import forgedsl

    pipeline = Path(forgedsl.__path__[0]) / "pipelines" / "grpo_math.forge"
    job = forgedsl.load(pipeline, profile="none", host="8xH200").plan().job
    (tmp_path / "job.json").write_text(job.model_dump_json())
    rows = [{"step": step, "reward_mean": 0.3 + 0.005 * step, "loss": 0.1} for step in range(1, 41)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (name,) = job.evals
    events: list[dict[str, Any]] = [
        {"time": 1.0, "kind": "run.start", "steps": 40},
        {"time": 1.5, "kind": "process.start", "service": "trainer", "mesh": "trainer", "rank": 0,
         "pid": 1, "actor": "A", "versions": {"torch": "2.13.0", "vllm": "0.32.0"}},
    ]  # fmt: skip
    for number, (step, value) in enumerate([(0, 0.4), (20, 0.6), (40, 0.7)]):
        about = {"id": number, "name": name, "step": step}
        events.append({"time": 2.0 + number, "kind": "eval.start", **about})
        events.append({"time": 2.5 + number, "kind": "eval.end", "value": value, **about})
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    text = write_card(tmp_path, 30, tmp_path).read_text()
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["base_model"] == job.models["policy"].source.id
    assert "license" not in header
    assert f"| {name} |" in text
    assert "0.400 (step 0) | 0.600 (step 20) |" in text
    golden("card.md", re.sub(r"`[0-9a-f]{64}`", "`JOB`", text))


def test_the_card_of_a_resumed_run_has_paths_of_the_file_and_each_proof_once(
    tmp_path: Path,
) -> None:
    source = spec.FileSource(kind="csv", path="inputs/data/minus.csv", sha256="0" * 64)
    base = spec.LocalModel(path="forgedsl:models/tiny_math", sha256="1" * 64)
    made = make_job()
    steps = (getattr(node, "loss", None) is not None for node in made.nodes)
    job = made.model_copy(update={
        "nodes": tuple(  # the loss of the small job has no tree that a card could show
            node.model_copy(update={"loss": None}) if step else node
            for node, step in zip(made.nodes, steps, strict=True)
        ),
        "datasets": {"minus": spec.Dataset(source=source, tokenizer="policy", shuffle=17)},
        "models": {"policy": spec.Model(source=base, dtype="f32", context=256)},
    })  # fmt: skip
    (tmp_path / "job.json").write_text(job.sealed().model_dump_json())
    lines = [
        {"proof": "gap", "steps": steps, "largest_mean": apart, "guarded": True}
        for steps, apart in ((4, 1e-7), (9, 2e-7))
    ]
    lines += [{"proof": "start", "service": "a", "tensors": 3, "holds": True}] * 2
    (tmp_path / "proofs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = write_card(tmp_path, 9, tmp_path).read_text()
    assert "`local(forgedsl:models/tiny_math), f32, context 256`" in text
    assert "| minus | csv(data/minus.csv), sha256" in text
    assert text.count("| gap |") == text.count("| start |") == 1
    assert "2e-07 at age 0 in the mean of a step (9 steps compared)" in text


def test_an_export_has_its_card(trained: Path, tmp_path: Path) -> None:
    text = (export(trained, 4, tmp_path / "out") / "README.md").read_text()
    assert "the weights after step 4" in text


def test_a_card_on_the_hub_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "README.md"):
        (tmp_path / name).write_text("{}")
    commits = []
    for there in (False, True):
        monkeypatch.setattr(Hub, "has_card", there)
        with hub(monkeypatch) as seen:
            push(tmp_path, "me/sums")
        commits.append(next(body for path, body in seen if "/commit/" in path))
    assert ["README.md" in commit for commit in commits] == [True, False]
