"""Losses from hidden states and lm_head, against their matrix products alone."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from loss_timing import LENGTH, LONG_SLEEP, above, interleaved, report
from torch import Tensor

import forgedsl
from forgedsl_runtime.losses import token_logprobs

WORKSPACE = 2**28
CHUNK = 4096
SHAPES = ((151936, 2048), (128256, 4096))


@dataclass
class Sources:
    """Random hidden states and lm_head in bf16, and what the losses need."""

    hidden: Tensor
    weight: Tensor
    call: dict[str, Tensor | int]
    inputs: dict[str, Tensor]

    def run(
        self, name: str, params: dict[str, float] | None = None, **more: object
    ) -> Callable[[], str]:
        """Forward and backward of a loss of ours."""
        loss = forgedsl.compile_loss(name, params=params, backend="triton")
        inputs = {key: value for key, value in self.inputs.items() if key in loss.input_names}
        inputs |= {key: more.pop(key) for key in list(more) if key in inputs}

        def step() -> str:
            out = loss.linear(hidden=self.hidden, weight=self.weight, **self.call, **inputs, **more)
            out.loss.backward()
            self.hidden.grad = self.weight.grad = None
            return out.kernel

        return step


def make(vocabulary: int, width: int, rows: int) -> Sources:
    torch.manual_seed(0)
    hidden = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    weight = (torch.randn(vocabulary, width, device="cuda") / width**0.5).bfloat16()
    labels = torch.randint(vocabulary, (rows,), device="cuda")
    current = token_logprobs(hidden, weight, labels, chunk_rows=CHUNK).float()
    noise = 0.05 * torch.randn(2, rows, device="cuda")
    inputs = {
        "behavior": current + noise[0],
        "ref": current + noise[1],
        "adv": torch.randn(rows // LENGTH, device="cuda"),
    }
    call = {
        "labels": labels,
        "chunk_rows": CHUNK,
        "seq_id": torch.arange(rows, device="cuda") // LENGTH,
        "num_tokens": torch.tensor(float(rows), device="cuda"),
        "num_sequences": torch.tensor(float(rows // LENGTH), device="cuda"),
    }
    return Sources(hidden.requires_grad_(), weight.requires_grad_(), call, inputs)


def shapes(options: argparse.Namespace) -> Iterable[tuple[int, int]]:
    """Vocabularies and widths, all pairs of those asked for."""
    if not options.vocabulary and not options.width:
        return SHAPES
    vocabularies, widths = zip(*SHAPES, strict=True)
    return itertools.product(options.vocabulary or vocabularies, options.width or widths)


def bench_linear(options: argparse.Namespace) -> None:
    """All providers at each shape, against the three products alone."""
    for vocabulary, width in shapes(options):
        data = make(vocabulary, width, options.rows)
        hidden, weight = data.hidden.detach(), data.weight.detach()
        runs: dict[str, Callable[[], object]] = {
            "three products": products(hidden, weight, CHUNK),
            "ours dapo": data.run("dapo"),
            "ours sft": data.run("sft"),
            "ours grpo": data.run("grpo"),
            "ours grpo+entropy": data.run("grpo", {"entropy_coef": 0.01}),
            "ours gspo": data.run("gspo"),
            "ours dapo, fp32 logits kept": data.run("dapo", logits_dtype=torch.float32),
            "ours dapo, bf16 logits kept": data.run("dapo", logits_dtype=torch.bfloat16),
        }
        bounded: dict[str, Callable[[], object]] = {
            "four products": products(hidden, weight, CHUNK, logits=2),
            "ours dapo, 256 MiB": data.run("dapo", workspace=WORKSPACE),
            "ours gspo, 256 MiB": data.run("gspo", workspace=WORKSPACE),
        }
        if options.others:
            runs["liger fused linear"] = _liger_linear(data)
        peak = above(runs["ours dapo"]) / 2**30
        outputs = 2 * (hidden.numel() + weight.numel())
        space = (above(bounded["ours dapo, 256 MiB"]) - outputs) / 2**20
        found = interleaved(runs, lambda: None, options.repeats, LONG_SLEEP)
        rate = 6 * options.rows * width * vocabulary / found["three products"][0] / 1e9
        shape = f"V={vocabulary} H={width} N={options.rows}"
        report(f"{shape}: {rate:.0f} TF, {peak:.2f} GiB above the inputs", found, {})
        # apart: the products run faster after a run that lets the device cool
        found = interleaved(bounded, lambda: None, options.repeats, LONG_SLEEP)
        report(f"the same with workspace=256 MiB: {space:.0f} MiB besides the gradients", found, {})


def bench_compact(options: argparse.Namespace) -> None:
    """A share z of the sequences has no advantage, and their rows are left out."""
    for vocabulary, width in shapes(options):
        data = make(vocabulary, width, options.rows)
        runs: dict[str, Callable[[], object]] = {"all rows": data.run("dapo")}
        for share in (0.0, 0.25, 0.5, 0.75):
            adv = data.inputs["adv"].clone()
            adv[torch.randperm(adv.numel(), device="cuda")[: int(share * adv.numel())]] = 0.0
            runs[f"z={share}, ideal {(2 + 4 * (1 - share)) / 6:.3f}"] = data.run(
                "dapo", compact=True, adv=adv
            )
        found = interleaved(runs, lambda: None, options.repeats, LONG_SLEEP)
        report(f"V={vocabulary} H={width} N={options.rows}, compacted", found, {})


def products(hidden: Tensor, weight: Tensor, chunk: int, logits: int = 1) -> Callable[[], object]:
    """The matrix products alone, in chunks of rows, all in bf16; that of the logits repeatedly."""
    buffer = torch.randn(chunk, weight.shape[0], device="cuda", dtype=torch.bfloat16)
    d_weight, d_hidden = torch.empty_like(weight), torch.empty_like(hidden)

    def run() -> None:
        for start in range(0, hidden.shape[0], chunk):
            part = hidden[start : start + chunk]
            for _ in range(logits):
                torch.mm(part, weight.t(), out=buffer)
            torch.mm(buffer, weight, out=d_hidden[start : start + chunk])
            if start == 0:
                torch.mm(buffer.t(), part, out=d_weight)
            else:
                torch.addmm(d_weight, buffer.t(), part, out=d_weight)

    return run


def _liger_linear(data: Sources) -> Callable[[], object]:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False, epsilon_high=0.28)
    adv = data.inputs["adv"]
    shape = adv.numel(), data.hidden.shape[0] // adv.numel()
    mask = torch.ones(shape, device="cuda")
    labels, old = data.call["labels"], data.inputs["behavior"]
    assert isinstance(labels, Tensor)

    def run() -> None:
        value, _ = loss(
            data.hidden.view(*shape, -1),
            data.weight,
            labels.view(shape),
            mask,
            adv,
            old_per_token_logps=old.view(shape),
        )
        value.backward()
        data.hidden.grad = data.weight.grad = None

    return run
