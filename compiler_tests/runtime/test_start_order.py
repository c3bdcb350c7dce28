"""Processes of a run start before the command imports torch, and import their modules meanwhile."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from forgedsl.lower import job as spec
from forgedsl_runtime import meshes
from forgedsl_runtime.services.base import Kind
from forgedsl_runtime.services.registry import KINDS, load
from forgedsl_runtime.upstream.monarch import bootstrap


def generator() -> spec.VllmService:
    return spec.VllmService(
        model="policy", mesh=spec.Mesh(name="generator", device="cpu"), dtype="f32",
        sampling=spec.Sampling(max_tokens=4),
    )  # fmt: skip


def test_what_starts_processes_imports_nothing_heavy() -> None:
    code = (
        "import sys, forgedsl_runtime.services.real_backend\n"
        "heavy = {'torch', 'torchtitan', 'transformers', 'triton', 'vllm'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_processes_set_their_variables_before_anything_reads_them(tmp_path: Path) -> None:
    """A process unpickles its start function first. That imports nothing that reads them."""
    start = bootstrap({}, tmp_path / "gen", "cpu", partial(load, "titan"))
    code = (
        "import pickle, sys\n"
        "pickle.load(sys.stdin.buffer)\n"
        "print(sorted({'numpy', 'torch', 'vllm'} & set(sys.modules)))\n"
    )
    command, text = [sys.executable, "-c", code], cloudpickle.dumps(start)
    done = subprocess.run(command, input=text, capture_output=True, check=True)
    assert done.stdout == b"[]\n"


class RecordingMesh:
    """Stands for a mesh; tells the order of its calls."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    def run(self, actor: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.told.append(f"run {self.name}")


def test_all_processes_start_before_a_class_is_imported(
    make_job: Any, make_titan: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []

    def begin(*, name: str, **_: Any) -> RecordingMesh:
        told.append(f"begin {name}")
        return RecordingMesh(name, told)

    def actor(service: Any) -> type:
        told.append("import")
        return object

    monkeypatch.setattr(meshes, "Mesh", SimpleNamespace(begin=begin))
    monkeypatch.setattr(meshes, "kind_of", lambda service: Kind(name="fake", actor=actor))
    job = make_job(services={"trainer": make_titan(), "generator": generator()})
    fleet = meshes.begin(job, tmp_path, {})
    assert sorted(told) == ["begin generator", "begin trainer"]
    told.clear()
    meshes.run_actors(fleet, job, tmp_path, {"trainer": tmp_path, "generator": tmp_path})
    assert sorted(told) == ["import", "import", "run generator", "run trainer"]


def test_a_process_whose_modules_cannot_be_imported_says_why_in_its_log(tmp_path: Path) -> None:
    """The actor is imported again, and its error ends the run."""
    code = (
        "from pathlib import Path\n"
        "from forgedsl_runtime.upstream.monarch import bootstrap\n"
        "def load(device):\n"
        "    raise ImportError(f'no such module on {device}')\n"
        f"bootstrap({{}}, Path({str(tmp_path / 'gen')!r}), 'cpu', load)()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    (log,) = tmp_path.glob("gen-*.log")
    assert "ImportError: no such module on cpu" in log.read_text("utf-8")


def test_what_a_process_imports_is_left_out_of_garbage_collections(tmp_path: Path) -> None:
    code = (
        "import gc\n"
        "from pathlib import Path\n"
        "from forgedsl_runtime.upstream.monarch import bootstrap\n"
        "held = []\n"
        "def load(device):\n"
        "    held.extend([] for _ in range(100_000))\n"
        f"bootstrap({{}}, Path({str(tmp_path / 'gen')!r}), 'cpu', load)()\n"
        "assert gc.get_freeze_count() > 100_000\n"
        "assert gc.isenabled()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_processes_import_the_classes_of_their_actors(kind: Kind, make_titan: Any) -> None:
    """`load` imports at least what `actor` needs, so that the actor finds it imported."""
    code = (
        "import sys\n"
        "from forgedsl_runtime.services.registry import KINDS\n"
        f"kind = next(kind for kind in KINDS if kind.name == {kind.name!r})\n"
        "kind.load('cpu')\n"
        "print(*(name for name in sys.modules if name.startswith('forgedsl_runtime')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    service = make_titan() if kind.name == "titan" else generator()
    assert kind.actor(service).__module__ in done.stdout.split()
