"""Run a loss that is a user's `torch.nn.Module`.

    x  ->  forward(logprob=[N], adv=[B], seq_id=[N], num_tokens=[])  ->  loss, or (loss, reports)

`forward` gets only valid tokens, packed: token fields are `[N]`, sequence fields `[B]`, and
`seq_id[n]` is the sequence of token n. `forward` must return a sum, divided by counts of the whole
optimizer step (`num_tokens`, `num_sequences`). Then the losses of microbatches and ranks add up to
that of the step.
"""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class ModuleError(ValueError):
    """A Python class cannot be used as a loss, or failed; the text names class, file and line."""


class ModuleLoss:
    """An object of the class `type_name`, which the file `path` with content `text` defines."""

    def __init__(
        self,
        text: str,
        path: str,
        type_name: str,
        args: Mapping[str, Any],
        *,
        per_sequence: tuple[str, ...],
        seq_id: bool,
        reports: tuple[str, ...],
    ) -> None:
        self.label, self.path = f"`{type_name}` of {path}", path
        self.per_sequence, self.seq_id, self.reports = per_sequence, seq_id, reports
        module = ModuleType(f"forgedsl_module_{type_name}")
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        try:
            exec(compile(text, path, "exec"), module.__dict__)
            self.module: torch.nn.Module = getattr(module, type_name)(**args)
        except Exception as error:
            raise ModuleError(self._failed("cannot be made", error)) from error
        if found := [name for name, _ in self.module.named_parameters()]:
            raise ModuleError(
                f"{self.label} has parameters ({', '.join(found)}), which no optimizer trains: use "
                "arguments or buffers instead"
            )

    def value(
        self, x: SimpleNamespace, inputs: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the reports of the rows of `x`."""
        loss, reports = self._call(x, inputs)
        return loss.detach(), {
            name: torch.as_tensor(found, device=loss.device).detach()
            for name, found in reports.items()
        }

    def gradient(
        self, x: SimpleNamespace, inputs: Mapping[str, Tensor], names: tuple[str, ...]
    ) -> dict[str, Tensor]:
        """Return the gradient of the loss with respect to each of `names`, `[N]` for all rows of
        `x`; 0 for invalid rows.

        Raises:
            ModuleError: the class failed, or its loss does not depend on any of `names`.
        """
        leaves = {name: inputs[name].detach().requires_grad_() for name in names}
        with torch.enable_grad():
            loss, _ = self._call(x, {**inputs, **leaves})
        if not bool(x.mask.any()):
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        if not loss.requires_grad:
            raise ModuleError(
                f"the loss that {self.label} returns has no gradient for {' and '.join(names)}: "
                "was a tensor detached, or rebuilt from Python numbers?"
            )
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if part is None else part.where(x.mask, 0.0)
            for (name, leaf), part in zip(leaves.items(), found, strict=True)
        }

    def _call(
        self, x: SimpleNamespace, inputs: Mapping[str, Tensor]
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Call `forward` on the valid rows; return 0 if there are none, as on a rank without
        work."""
        kept: Tensor = x.mask
        if not bool(kept.any()):
            nothing = torch.zeros((), dtype=x.dtype, device=kept.device)
            return nothing, dict.fromkeys(self.reports, 0.0)
        whole = {"num_tokens", "num_sequences", *self.per_sequence}
        given = {name: v if name in whole else v[kept] for name, v in inputs.items()}
        if self.seq_id:
            given["seq_id"] = x.seq_id[kept]
        try:
            found = self.module.to(kept.device)(**given)
        except Exception as error:
            raise ModuleError(self._failed("failed", error)) from error
        loss, reports = found if isinstance(found, tuple) else (found, {})
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ModuleError(
                f"{self.label} returns {shape}, but a loss must be a tensor with one number"
            )
        if sorted(reports) != sorted(self.reports):
            raise ModuleError(
                f"{self.label} returns reports {sorted(reports)}, but its class declares `reports "
                f"= {self.reports!r}`"
            )
        return loss.reshape(()), reports

    def _failed(self, what: str, error: Exception) -> str:
        """Describe an error with the line of the file that it came from."""
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == self.path]
        line = f" in line {frames[-1].lineno}" if frames else ""
        return f"{self.label} {what}{line}: {type(error).__name__}: {error}"
