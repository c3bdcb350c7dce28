"""Prints vLLM's key of what it compiles for an engine, for each folder named.

Run by test_engine_start: vLLM takes a process for itself.
"""

import json
import sys
from pathlib import Path
from typing import Any

from forgedsl.lower import job as spec
from forgedsl_runtime.services.vllm.upstream import engine as upstream
from forgedsl_runtime.services.vllm.upstream.variables import prepare_environment


class Configured(Exception):
    """Raised in place of loading a model, with vLLM's configuration."""


def key(folder: Path) -> str:
    from vllm.v1.engine.llm_engine import LLMEngine

    def stop(config: Any, **_: Any) -> None:
        raise Configured(config)

    LLMEngine.from_vllm_config = stop  # type: ignore[method-assign, assignment]
    mesh = spec.Mesh(name="m", device="cpu")
    service = spec.VllmService(
        model="m", mesh=mesh, dtype="f32", sampling=spec.Sampling(max_tokens=4)
    )
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=64)
    engine_rank = upstream.EngineRank(rank=0, ranks=1, rendezvous_file=folder / "rendezvous")
    try:
        upstream.Engine(service, model, folder, 1, engine_rank)
    except Configured as found:
        return str(found.args[0].compute_hash())
    raise AssertionError("the engine was not configured")


if __name__ == "__main__":
    prepare_environment("cpu")
    print("RESULT" + json.dumps([key(Path(folder)) for folder in sys.argv[1:]]))
