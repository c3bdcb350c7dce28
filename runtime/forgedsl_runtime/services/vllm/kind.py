"""Kind `vllm`: the actor that runs it.

Functions import what they need: vLLM takes seconds, and processes start before that.
"""

from __future__ import annotations

from forgedsl.lower import job as spec
from forgedsl_runtime.services.base import Kind


def _load(device: str) -> None:
    from forgedsl_runtime.services.vllm import actor  # noqa: F401
    from forgedsl_runtime.services.vllm.upstream.start import preload

    preload(device)


def _actor(service: spec.Service) -> type:
    from forgedsl_runtime.services.vllm.actor import Generator

    return Generator


KIND = Kind(name="vllm", actor=_actor, load=_load, aborts=True)
