"""Kernels of attention are compiled ahead where a trainer must not run passes before its first
step, for the shapes of its batches, and without memory of the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from forgedsl.job.parts import Place
from forgedsl.lower import job as spec
from forgedsl_runtime.services.titan import warm_up
from forgedsl_runtime.services.titan.upstream import flash_attention
from forgedsl_runtime.services.titan.upstream.attention import newest_shapes

SCRIPT = Path(__file__).parent / "attention_compiled_ahead.py"


class Layer(nn.Module):
    """What `newest_shapes` reads of a layer's attention."""

    def __init__(self, heads: int = 16, key_heads: int = 8, *, newest: bool = True) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = heads, key_heads, 128
        self.inner_attention: Any = nn.Identity()
        self.inner_attention.newest = newest


class Kernels:
    """Records the calls of the kernels' functions."""

    def __init__(self) -> None:
        self.forward: list[tuple[Any, ...]] = []
        self.backward: list[tuple[Any, ...]] = []

    def _flash_attn_fwd(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Any, ...]:
        self.forward.append((q, k, v, options))
        return torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0]), None, None

    def _flash_attn_bwd(self, *tensors: Tensor, **options: Any) -> tuple[Tensor, ...]:
        self.backward.append((*tensors, options))
        q, k, v, *_ = tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kernels:
    found = Kernels()
    monkeypatch.setenv(flash_attention.CACHED, "1")
    monkeypatch.setenv(flash_attention.CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(flash_attention, "kernels", lambda: found)
    return found


def test_made_up_shapes_are_those_of_batches_and_allocate_nothing(kernels: Kernels) -> None:
    flash_attention.compile_ahead(16, 8, 128, torch.bfloat16, seq_len=1500, rows=128)
    *both, probe = kernels.forward
    assert [options["cu_seqlens_q"].shape for *_, options in both] == [(3,), (513,)]
    assert [options["max_seqlen_q"] for *_, options in both] == [2048, 2048]
    assert probe[-1]["max_seqlen_q"] == 128
    assert len(kernels.backward) == 2
    for call in (*kernels.forward, *kernels.backward):
        *tensors, options = call
        q, k, v, *_ = tensors
        assert q.shape[1:] == (16, 128)
        assert k.shape[1:] == v.shape[1:] == (8, 128)
        assert options["causal"]
        assert options["max_seqlen_k"] == options["max_seqlen_q"]
        assert options["cu_seqlens_k"] is options["cu_seqlens_q"]
        given = [*tensors, options["cu_seqlens_q"]]
        assert all(isinstance(each, FakeTensor) and each.is_cuda for each in given)
        assert {each.dtype for each in (q, k, v)} == {torch.bfloat16}
        assert options["cu_seqlens_q"].dtype == torch.int32


def test_a_failure_is_not_swallowed(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("ptxas")

    monkeypatch.setattr(kernels, "_flash_attn_bwd", fail)
    with pytest.raises(RuntimeError, match="ptxas"):
        flash_attention.compile_ahead(16, 8, 128, torch.bfloat16, seq_len=1500, rows=16)


@pytest.mark.parametrize(
    ("degrees", "heads"),
    [({}, (16, 8)), ({"tp": 2}, (8, 4)), ({"cp": 4}, (4, 2)), ({"tp": 4, "cp": 4}, (1, 1))],
)
def test_shapes_are_those_of_a_rank(degrees: dict[str, int], heads: tuple[int, int]) -> None:
    parallel = spec.TitanParallel(**degrees)
    model = nn.ModuleList([Layer(), Layer(), Layer(newest=False)])
    assert newest_shapes(model, torch.bfloat16, parallel) == {(*heads, 128)}
    assert newest_shapes(model, torch.float32, parallel) == set()
    assert newest_shapes(nn.ModuleList([Layer(newest=False)]), torch.bfloat16, parallel) == set()


def _job(
    make_job: Any, titan: Any, trainer: int | None, generator: int | None, python: str = ""
) -> Any:
    """A job with these GPUs: a trainer's (None: it is on a CPU) and an engine's (None: no
    engine)."""

    def on(service: Any, gpu: int | None) -> Any:
        places = () if gpu is None else (Place(replica=0, host=0, gpus=(gpu,)),)
        device = "cpu" if gpu is None else "gpu"
        mesh = service.mesh.model_copy(update={"device": device, "places": places})
        return service.model_copy(update={"mesh": mesh})

    services = {"trainer": on(titan.model_copy(update={"dtype": "bf16"}), trainer)}
    if generator is not None:
        engine = spec.VllmService(
            model="policy", mesh=spec.Mesh(name="generator", device="cpu"), dtype="bf16",
            sampling=spec.Sampling(max_tokens=16),
        )  # fmt: skip
        services["generator"] = on(engine, generator)
    step = spec.Node(
        id="step", name="step", op="step", target="trainer", loss="loss", level="batch", origin="",
        inputs=(spec.Input(argument="batch", edge="batch"),),
    )  # fmt: skip
    sync = spec.Node(
        id="sync",
        name="sync",
        op="sync",
        target="trainer",
        to="generator",
        level="batch",
        origin="",
    )
    loss = spec.Loss(name="loss", source="", tree="", fields=(), reports=(), python=python)
    return make_job(services=services, losses={"loss": loss}, nodes=(step, sync))


@pytest.mark.parametrize(
    ("trainer", "generator", "python", "done"),
    [
        (0, 1, "", ["first passes", "probe"]),
        (0, 0, "", ["first passes", "probe"]),
        (0, 1, "losses.py", ["attention kernels", "probe"]),
        (None, 0, "", []),
        (0, None, "", []),
    ],
    ids=["own GPU", "shared GPU", "loss in Python", "CPU", "no engine"],
)
def test_what_is_done_before_the_first_step(
    make_job: Any, make_titan: Any, monkeypatch: pytest.MonkeyPatch, trainer: int | None,
    generator: int | None, python: str, done: list[str],
) -> None:  # fmt: skip
    job = _job(make_job, make_titan(), trainer, generator, python)
    ran: list[Any] = []

    def compile_ahead(*shape: Any, **batch: int) -> None:
        ran.append((*shape, batch))

    monkeypatch.setattr(flash_attention, "compile_ahead", compile_ahead)
    titan = SimpleNamespace(model=nn.ModuleList([Layer(), Layer()]))
    seconds = _prepare(job, titan, ran)
    assert list(seconds) == done
    shape = job.services["trainer"].batch
    compiled = (16, 8, 128, torch.bfloat16, {"seq_len": shape.seq_len, "rows": shape.rows})
    assert ran == [compiled if each == "attention kernels" else each for each in done]


def test_other_kernels_need_no_time(make_job: Any, make_titan: Any) -> None:
    """On GPUs before Hopper."""
    job = _job(make_job, make_titan(), 0, 0, "losses.py")
    titan = SimpleNamespace(model=nn.ModuleList([Layer(newest=False)]))
    assert list(_prepare(job, titan, [])) == ["probe"]


def test_a_trainer_that_never_publishes_computes_no_probe(make_job: Any, make_titan: Any) -> None:
    job = _job(make_job, make_titan(), 0, 0)
    alone = job.model_copy(update={"nodes": job.nodes[:1]})
    assert list(_prepare(alone, SimpleNamespace(), [])) == ["first passes"]


def _prepare(job: Any, titan: Any, ran: list[Any]) -> dict[str, float]:
    """Prepare the trainer of a job; list in `ran` what was run."""
    return warm_up.prepare(
        job, "trainer", titan, lambda: ran.append("first passes"), lambda: ran.append("probe")
    )


@pytest.mark.timeout(300)
@pytest.mark.skipif(not flash_attention.importable(), reason="needs a GPU build of vLLM")
def test_kernels_that_were_compiled_ahead_are_those_of_batches(tmp_path: Path) -> None:
    """Compiles really, for a Hopper GPU. A second process reads all of it from disk."""
    env = {
        **os.environ, flash_attention.CACHED: "1", flash_attention.CACHE: str(tmp_path),
        "FLASH_ATTENTION_ARCH": "sm_90", "CUTE_DSL_ARCH": "sm_90a",
        "FLASH_ATTENTION_NUM_SMS": "132",
    }  # fmt: skip
    for arguments in ([], ["again"]):
        command = [sys.executable, str(SCRIPT), *arguments]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
