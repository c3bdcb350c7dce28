"""Service `upper`, which answers a prompt with its text in capitals: a kind from outside, added as
docs/design/services.md says. Actors are found by the name of their module, so it is one."""

from __future__ import annotations

import time
from typing import Any, Literal

from monarch.actor import Port, concurrent_endpoint

from forgedsl.lower import job as spec
from forgedsl.lower import parts
from forgedsl.lower import services as lowering
from forgedsl.runtime import kinds
from forgedsl.runtime.actors.base import ForgeActor
from forgedsl.runtime.actors.generator import Request
from forgedsl.runtime.actors.twins import StubGenerator
from forgedsl.runtime.items import Completion, Message
from forgedsl.runtime.transports.base import Manifest
from forgedsl.services import registry
from forgedsl.services.base import COMMON, PLACE, SAMPLING, Capability, ServiceKind, row
from forgedsl.settings import COUNT, Kind

UPPER = ServiceKind(
    name="upper",
    schema=Kind(
        name="service",
        doc="answers in capitals",
        settings=(*COMMON, row("procs", COUNT, 1, PLACE, "processes per host"), *SAMPLING),
    ),
    can=frozenset({Capability.SAMPLES}),
    needs=(("sample", "sampling.max_tokens", "it samples"),),
    measure="sampling.",
)


class UpperService(parts.Sampler):
    kind: Literal["upper"] = "upper"


def lower(decl: Any, mesh: Any, plan: Any, dtype: Any, *, stepped: bool) -> UpperService:
    return UpperService(
        model=lowering.model_of(decl), mesh=lowering.lower_mesh(mesh), dtype=dtype,
        sampling=lowering.lower_sampling(decl),
    )  # fmt: skip


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
    async def load(self, manifest: Manifest, keep: bool) -> None:
        self.version = manifest.version

    def answer(self, request: Request) -> Completion:
        text = self.tokenizer.decode(request.token_ids).upper()
        ids, now = self.tokenizer.encode(text), time.time()
        return Completion(
            id=request.id, token_ids=ids, logprobs=[-1.0] * len(ids), mask=[True] * len(ids),
            text=text, truncated=False, version_min=self.version, version_max=self.version,
            started=now, finished=now, running=0,
        )  # fmt: skip


registry.KINDS += (UPPER,)
parts.SERVICES += (UpperService,)
lowering.LOWERED += (("upper", lower),)
kinds.KINDS += (kinds.Kind(name="upper", actor=lambda service: Upper, twin=StubGenerator),)
