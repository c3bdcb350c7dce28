"""A trainer whose passes fail where a test wants it."""

from __future__ import annotations

from typing import Any, Never

import torch
from monarch.actor import concurrent_endpoint

from forgedsl_runtime.services.titan.actor import TitanTrainer


class FailingTrainer(TitanTrainer):
    _until: int | None = None
    _where = ""

    @concurrent_endpoint
    async def fail(self, microbatch: int, where: str) -> None:
        """Fail once: in the forward or in the backward pass of this microbatch, of those with
        gradients from now on."""
        self._until, self._where = microbatch, where

    def _loss(self, loss: Any, micro: Any, totals: Any, hidden: Any, *args: Any) -> Any:
        if torch.is_grad_enabled() and self._until is not None:
            self._until -= 1
            if self._until == 0:
                self._until = None
                if self._where == "forward":
                    _fail(hidden)
                hidden.register_hook(_fail)
        return super()._loss(loss, micro, totals, hidden, *args)


def _fail(_: Any) -> Never:
    raise MemoryError("no room")
