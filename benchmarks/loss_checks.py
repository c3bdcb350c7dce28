"""Results of losses on the GPU: against float64, and bit for bit against a rerun."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from loss_timing import INVENTED, LOSSES, VOCABULARIES, Batch, make
from torch import Tensor

import forgedsl
from forgedsl_runtime.losses import token_logprobs

SMOOTHED = {"label_smoothing": 0.1, "z_loss": 0.01}


def check(options: argparse.Namespace) -> None:
    """Loss and gradient on the GPU against float64, and a rerun."""
    if not options.vocabulary:
        check_lengths()
        check_large()
        check_linear()
    sizes = options.vocabulary or (*VOCABULARIES, 32001)
    launched = [(vocabulary, far) for vocabulary in sizes for far in (1, 40)]
    for vocabulary, far in launched:
        batch = make(vocabulary, 384, 32)
        batch.source *= far  # labels far below the largest logit
        chosen = batch.source.float().gather(1, batch.labels[:, None])[:, 0]
        current = chosen - batch.source.float().logsumexp(1)
        batch.old = current + 0.05 * torch.randn_like(current)
        batch.ref = current + 0.05 * torch.randn_like(current)
        for name in options.loss or (*LOSSES, "invented"):
            batch.refresh()
            source = batch.source.double().view(12, 32, -1).requires_grad_()
            run = _checked(name, batch)
            loss, gradient, kernel = run(batch.logits.detach().clone())
            again = run(batch.logits.detach().clone())
            value, want, _ = run(source.detach(), "torch")
            error = (gradient.double() - want).norm() / want.norm()
            same = torch.equal(gradient, again[1]) and torch.equal(loss, again[0])
            off = abs(loss.item() - value.item())
            print(f"V={vocabulary} x{far} {name:13s} {kernel:28s} loss {off:.1e} "
                  f"gradient {error:.1e} {'same' if same else 'DIFFERS'}", flush=True)  # fmt: skip


def check_linear() -> None:
    """Gradients of hidden and weight in bf16: whole, in chunks, compacted, coupled, in tiles, with
    rows that are masked and hold NaN, with labels far below the largest logit."""
    ways = (
        {}, {"chunk_rows": 100}, {"chunk_rows": 100, "compact": True}, {"workspace": 1 << 23},
        {"logits_dtype": torch.float32}, {"logits_dtype": torch.bfloat16},
    )  # fmt: skip
    for far in (0.25, 40.0):
        for vocabulary, width in ((32000, 256), (50257, 320)):
            data = _linear_case(vocabulary, width, far)
            for name in ("dapo", "gspo", "grpo+entropy", "smoothed"):
                for more in ways:
                    _linear_way(name, data, more, f"V={vocabulary} x{far:g}")


def _linear_case(vocabulary: int, width: int, far: float) -> dict[str, Tensor]:
    torch.manual_seed(1)
    hidden = torch.randn(384, width, device="cuda", dtype=torch.bfloat16)
    weight = (torch.randn(vocabulary, width, device="cuda") * far).bfloat16()
    labels = torch.randint(vocabulary, (384,), device="cuda")
    current = token_logprobs(hidden, weight, labels)
    noise = 0.05 * torch.randn(2, 384, device="cuda")
    adv = torch.randn(12, device="cuda")
    adv[3] = 0.0
    return {
        "hidden": hidden, "weight": weight, "labels": labels, "behavior": current + noise[0],
        "ref": current + noise[1], "adv": adv,
        "seq_id": torch.arange(384, device="cuda") // 32,
        "mask": torch.arange(384, device="cuda") % 7 != 3,
    }  # fmt: skip


def _linear_way(name: str, data: dict[str, Tensor], more: dict[str, object], title: str) -> None:
    """One loss one way: the error of both gradients in norm, and whether a rerun has their bits."""
    source, params, _ = {**LOSSES, "smoothed": ("sft", SMOOTHED, ())}[name]
    loss, plain = (
        forgedsl.compile_loss(source, params=params, backend=b) for b in ("triton", "torch")
    )
    inputs = {key: data[key] for key in loss.input_names}
    call = {key: data[key] for key in ("labels", "seq_id", "mask")}
    pair = [data["hidden"], data["weight"]]
    wide = [part.double().requires_grad_() for part in pair]
    doubled = {key: value.double() for key, value in inputs.items()}
    want_loss = plain.linear(hidden=wide[0], weight=wide[1], **call, **doubled).loss
    want = torch.autograd.grad(want_loss, wide)
    pair[0] = torch.where(data["mask"][:, None], pair[0], torch.nan)
    found = []
    for _ in range(2):
        pair = [part.clone().requires_grad_() for part in pair]
        out = loss.linear(hidden=pair[0], weight=pair[1], **call, **inputs, **more)
        found.append((out.loss.detach(), *torch.autograd.grad(out.loss, pair)))
    errors = [
        ((g.double() - w).norm() / w.norm()).item() for g, w in zip(found[0][1:], want, strict=True)
    ]
    same = all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    off = abs(found[0][0].item() - want_loss.item()) / max(1.0, abs(want_loss.item()))
    how = ", ".join(f"{key}={value}" for key, value in more.items())
    errors_text = f"loss {off:.1e} hidden {errors[0]:.1e} weight {errors[1]:.1e}"
    print(f"{title} linear {name:13s} {out.kernel:28s} {how:32s} {errors_text} "
          f"{'same' if same else 'DIFFERS'}", flush=True)  # fmt: skip


def check_lengths() -> None:
    """Batches of 100 lengths, in random order: what is compiled after the first."""
    import triton

    compiled: list[object] = []

    def hook(**call: object) -> bool:
        compiled.append(call["repr"])
        return False

    triton.knobs.runtime.jit_cache_hook = hook
    torch.manual_seed(2)
    weight = torch.randn(32000, 256, device="cuda").bfloat16().requires_grad_()
    calls = (
        ("dapo", "logits", {}), ("grpo", "logits", {}), ("gspo", "packed", {}),
        ("dapo", "linear", {}), ("gspo", "linear", {}), ("grpo+entropy", "linear", {}),
        ("dapo", "linear", {"workspace": 1 << 24}),
    )  # fmt: skip
    for name, form, more in calls:
        source, params, names = LOSSES[name]
        loss = forgedsl.compile_loss(source, params=params, backend="triton")
        late = 0
        for turn, length in enumerate((torch.randperm(100) + 17).tolist()):
            compiled.clear()
            shape = (6, length)
            old = torch.full(shape, -10.0, device="cuda")
            values = {"behavior": old, "ref": old, "adv": torch.randn(6, device="cuda")}
            call = {key: values[key] for key in names}
            call["labels"] = torch.randint(32000, shape, device="cuda")
            source = torch.randn(*shape, 256 if form == "linear" else 32000, device="cuda")
            source = source.bfloat16().requires_grad_()
            if form == "packed":
                call = {k: v.flatten() if v.dim() == 2 else v for k, v in call.items()}
                call["seq_id"] = torch.arange(6, device="cuda").repeat_interleave(length)
                out = loss(logits=source.flatten(0, 1), **call)
            elif form == "logits":
                out = loss(logits=source, **call)
            else:
                out = loss.linear(hidden=source, weight=weight, **call, **more)
            out.loss.backward()
            late += len(compiled) if turn else 0
        how = ", ".join(f"{key}={value}" for key, value in more.items())
        print(f"100 lengths {name} {out.kernel} {how}: {late} kernels compiled later", flush=True)
    triton.knobs.runtime.jit_cache_hook = None


def check_large() -> None:
    """More logits than 32 bits can count."""
    for count, vocabulary in ((20000, 128256), (70000, 32000)):
        _large_logits(count, vocabulary)
    torch.manual_seed(3)
    hidden, weight = (
        torch.randn(n, 512, device="cuda", dtype=torch.bfloat16).requires_grad_()
        for n in (20000, 128256)
    )
    labels = torch.randint(128256, (20000,), device="cuda")
    loss = forgedsl.compile_loss("sft", backend="triton")
    found = []
    for rows in (20000, 4096):
        out = loss.linear(hidden=hidden, weight=weight, labels=labels, chunk_rows=rows)
        found.append(torch.autograd.grad(out.loss, (hidden, weight)))
    errors = [f"{((a - b).norm() / b.norm()).item():.1e}" for a, b in zip(*found, strict=True)]
    print(f"linear N=20000 V=128256, one chunk against five: {', '.join(errors)}", flush=True)


def _large_logits(count: int, vocabulary: int) -> None:
    """The first, middle and last sequence against float64, and against their bits alone."""
    shape = count // 100, 100
    torch.manual_seed(3)
    logits = torch.randn(*shape, vocabulary, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(vocabulary, shape, device="cuda")
    old = torch.full(shape, -12.0, device="cuda")
    adv = torch.randn(shape[0], device="cuda")
    tokens = torch.tensor(float(count), device="cuda")
    loss = forgedsl.compile_loss("dapo", backend="triton")

    def run(rows: slice, backend: str = "triton") -> tuple[Tensor, str]:
        narrow, wide = (
            (torch.bfloat16, torch.float32) if backend == "triton" else (torch.float64,) * 2
        )
        part = logits[rows].to(narrow).requires_grad_()
        inputs = {"behavior": old[rows].to(wide), "adv": adv[rows].to(wide)}
        out = loss.using(backend)(logits=part, labels=labels[rows], num_tokens=tokens, **inputs)
        return torch.autograd.grad(out.loss, part)[0], out.kernel

    whole, kernel = run(slice(0, shape[0]))
    for at in (0, shape[0] // 2, shape[0] - 1):
        rows = slice(at, at + 1)
        alone, _ = run(rows)
        want, _ = run(rows, "torch")
        error = ((whole[rows].double() - want).norm() / want.norm()).item()
        same = "same" if torch.equal(alone, whole[rows]) else "DIFFERS"
        print(f"N={count} V={vocabulary} {kernel} sequence {at}: {error:.1e} {same}", flush=True)


def _checked(name: str, batch: Batch) -> Callable[..., tuple[Tensor, Tensor, str]]:
    text, params, names = LOSSES.get(name, (INVENTED, {}, ("behavior", "ref", "adv")))
    values = {"behavior": batch.old.view(12, 32), "ref": batch.ref.view(12, 32), "adv": batch.adv}

    def run(logits: Tensor, backend: str = "triton") -> tuple[Tensor, Tensor, str]:
        loss = forgedsl.compile_loss(text, params=params, backend=backend)
        logits = logits.view(12, 32, -1).requires_grad_()
        mask = torch.arange(32, device="cuda").expand(12, 32) % 7 != 3
        inputs = {
            key: values[key].to(torch.float64 if backend == "torch" else torch.float32)
            for key in names
        }
        out = loss(logits=logits, labels=batch.labels.view(12, 32), mask=mask, **inputs)
        (gradient,) = torch.autograd.grad(out.loss, logits)
        return out.loss.detach(), gradient, out.kernel

    return run
