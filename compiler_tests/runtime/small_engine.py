"""An engine of vLLM with few blocks, for scripts that have a process for it."""

from pathlib import Path
from typing import Any

from forgedsl.lower import job as spec
from forgedsl_runtime.services.vllm.upstream import engine as upstream
from forgedsl_runtime.services.vllm.upstream.variables import prepare_environment


def small_engine(
    model: Path, rendezvous_file: Path, *, device: str = "cpu", random: bool = False,
    record: bool = False, **changed: Any,
) -> upstream.Engine:  # fmt: skip
    """Start an engine of the model in a folder. `rendezvous_file` does not exist yet; `random`
    weights are replaced by the first publication; with `record` it keeps digests of what it loads;
    `changed` are other settings of the service. On a CPU it computes in f32, on a GPU in bf16."""
    dtype = "f32" if device == "cpu" else "bf16"
    prepare_environment(device)
    service = spec.VllmService(
        model="m", mesh=spec.Mesh(name="m", device=device), dtype=dtype, max_running=8,
        sampling=spec.Sampling(max_tokens=4),
        extra={"block_size": 32, "num_gpu_blocks_override": 16}, **changed,
    )  # fmt: skip
    source = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype=dtype, context=96)
    engine_rank = upstream.EngineRank(rank=0, ranks=1, rendezvous_file=rendezvous_file)
    return upstream.Engine(service, source, model, 1, engine_rank, random=random, record=record)
