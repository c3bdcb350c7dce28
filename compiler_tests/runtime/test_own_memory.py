"""An engine that shares its GPU counts its own memory, whatever others take or free meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forgedsl.job.parts import Place
from forgedsl.lower import job as spec
from forgedsl_runtime.services.vllm.upstream.own_memory import (
    OwnMemory,
    count_own_memory,
)

GIB = 2**30
LIMIT = GIB // 2
TOTAL = 80 * GIB


class Gpu:
    """A GPU whose memory is that of PyTorch in this process, of libraries, and of others."""

    def __init__(self) -> None:
        self.tensors, self.libraries, self.others = 0, GIB // 2, 10 * GIB

    def memory_info(self, device: Any = None) -> tuple[int, int]:
        return TOTAL - self.tensors - self.libraries - self.others, TOTAL

    def reserved(self, device: Any = None) -> int:
        return self.tensors


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A GPU that vLLM's snapshots measure."""
    pytest.importorskip("vllm")
    import torch
    from vllm.utils import mem_utils

    made = Gpu()
    monkeypatch.setattr(torch.accelerator, "get_memory_info", made.memory_info)
    monkeypatch.setattr(torch.accelerator, "memory_reserved", made.reserved)
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda device: {})
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", lambda device: None)
    platform = SimpleNamespace(
        is_integrated_gpu=lambda index: False, device_name="cuda", current_device=lambda: "cuda:0"
    )
    monkeypatch.setattr(mem_utils, "current_platform", platform)
    return made


def _profile(gpu: Gpu, *, others: int, libraries: int = GIB // 4) -> Any:
    """Return what vLLM measures of an engine that takes 8 GiB of tensors, while others take
    `others` bytes."""
    from vllm.utils.mem_utils import MemorySnapshot, memory_profiling

    begin = MemorySnapshot(device="cuda:0")
    assert begin.free_memory == gpu.memory_info()[0]  # vLLM compares it with the engine's share
    gpu.others += others // 2
    gpu.tensors += 6 * GIB
    with memory_profiling(begin) as result:
        gpu.others += others - others // 2
        gpu.tensors += 2 * GIB
        gpu.libraries += libraries
    return result


@pytest.mark.parametrize(
    ("others", "counted"),
    [(0, 8 * GIB + GIB // 4), (20 * GIB, 8 * GIB + LIMIT), (-5 * GIB, 8 * GIB)],
    ids=["others are quiet", "others allocate", "others free memory"],
)
def test_only_own_memory_is_counted(gpu: Gpu, others: int, counted: int) -> None:
    with count_own_memory():
        result = _profile(gpu, others=others)
    assert result.total_consumed == counted
    assert result.non_kv_cache_memory == counted
    assert result.before_create.free_memory >= result.after_profile.free_memory


def test_vllm_alone_counts_the_memory_of_others(gpu: Gpu) -> None:
    """What this module is for. If it fails, vLLM may have learned to do it."""
    assert _profile(gpu, others=20 * GIB).total_consumed == 28 * GIB + GIB // 4


def test_a_graph_is_as_large_as_what_it_allocates(gpu: Gpu) -> None:
    """vLLM multiplies the memory of its second graph by the number of graphs."""
    import torch

    with count_own_memory():
        _profile(gpu, others=0)
        before, total = torch.accelerator.get_memory_info()
        gpu.others += 3 * GIB
        gpu.tensors += GIB // 8
        after, _ = torch.accelerator.get_memory_info()
    assert (before - after, total) == (GIB // 8, TOTAL)


def test_memory_that_was_taken_before_is_not_counted() -> None:
    gpu = Gpu()
    gpu.tensors = 3 * GIB
    own = OwnMemory(gpu.memory_info, gpu.reserved, lambda snapshot: None)
    free, _ = own.memory_info()
    assert free == gpu.memory_info()[0]


def _on(service: Any, *gpus: int) -> Any:
    places = (Place(replica=0, host=0, gpus=gpus),) if gpus else ()
    mesh = service.mesh.model_copy(update={"device": "gpu" if gpus else "cpu", "places": places})
    return service.model_copy(update={"mesh": mesh})


@pytest.mark.parametrize(
    ("trainer", "generator", "shares"),
    [((0,), (1,), False), ((0, 1), (1,), True), ((), (), False)],
    ids=["own GPUs", "a shared GPU", "CPU"],
)
def test_which_services_share_a_gpu(
    make_job: Any, make_titan: Any, trainer: tuple[int, ...], generator: tuple[int, ...],
    shares: bool,
) -> None:  # fmt: skip
    engine = spec.VllmService(
        model="policy", mesh=spec.Mesh(name="generator", device="cpu"), dtype="f32",
        sampling=spec.Sampling(max_tokens=16),
    )  # fmt: skip
    services = {"trainer": _on(make_titan(), *trainer), "generator": _on(engine, *generator)}
    job = make_job(services=services)
    assert {job.shares_gpu("trainer"), job.shares_gpu("generator")} == {shares}
