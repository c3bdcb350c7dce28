"""How `upper` runs."""

from __future__ import annotations

import time
from typing import Any

from monarch.actor import Port, concurrent_endpoint

from forgedsl.lower import job as spec
from forgedsl_runtime.actors.base import ForgeActor
from forgedsl_runtime.data_types import Completion, Message, Request
from forgedsl_runtime.services.base import Kind


class Upper(ForgeActor):
    def __init__(self, job: spec.Job, name: str, folder: str, *, threads: int, token: str) -> None:
        super().__init__()
        self.folder, self.version = folder, 0

    @concurrent_endpoint
    async def setup(self, run_key: str) -> dict[str, Any]:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return {}

    @concurrent_endpoint
    async def serve(self, port: Port[Message]) -> None:
        self.port = port

    @concurrent_endpoint
    async def submit(self, requests: list[Request]) -> None:
        self.port.send(Message(completions=[self.answer(request) for request in requests]))

    @concurrent_endpoint
    async def load(self, manifest: Any, keep: bool) -> None:
        self.version = manifest.version

    def answer(self, request: Request) -> Completion:
        text = self.tokenizer.decode(request.token_ids).upper()
        ids, now = self.tokenizer.encode(text), time.time()
        return Completion(
            id=request.id, token_ids=ids, logprobs=[-1.0] * len(ids), mask=[True] * len(ids),
            text=text, truncated=False, version_min=self.version, version_max=self.version,
            started=now, finished=now, running=0,
        )  # fmt: skip


KINDS = (Kind(name="upper", actor=lambda service: Upper),)
