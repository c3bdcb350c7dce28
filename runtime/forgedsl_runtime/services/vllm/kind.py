"""Kind `vllm`: the actor that runs it."""

from __future__ import annotations

from forgedsl_runtime.services.base import Kind
from forgedsl_runtime.services.vllm.actor import Generator

KIND = Kind(name="vllm", actor=lambda service: Generator, aborts=True)
