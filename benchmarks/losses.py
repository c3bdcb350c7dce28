"""Time losses against the memory floor and against other implementations, in one process.

    python benchmarks/losses.py logits    forward and backward from bf16 logits
    python benchmarks/losses.py linear    from hidden states and lm_head
    python benchmarks/losses.py tune      launch parameters of the fused kernel
    python benchmarks/losses.py check     results on the GPU against float64

Every provider runs in turn inside one loop over the same data; its time is the median of GPU events
around it, with the host far ahead of the device (a sleeping kernel before each start), so launches
cost nobody. Logits are random and written anew before each run, outside the timed region. The floor
is a copy that moves as many bytes as the result must: read the logits, write their gradient.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import forgedsl
from forgedsl.runtime.losses import kernels as launching
from forgedsl.runtime.losses import token_logprobs

VOCABULARIES = (32000, 128256, 151936)
ROWS, LENGTH = 8192, 128
WORKSPACE = 2**28
SLEEP = 2_000_000
"""Clock ticks of the sleeping kernel, about a millisecond."""


@dataclass
class Batch:
    """Random logits and what the losses need, old log-probs 0.05 from the current ones."""

    source: Tensor
    logits: Tensor
    labels: Tensor
    old: Tensor
    ref: Tensor
    adv: Tensor

    def refresh(self) -> None:
        self.logits.copy_(self.source)


def make(vocabulary: int, rows: int = ROWS, length: int = LENGTH) -> Batch:
    torch.manual_seed(0)
    source = torch.randn(rows, vocabulary, device="cuda", dtype=torch.bfloat16) * 2
    labels = torch.randint(vocabulary, (rows,), device="cuda")
    current = torch.empty(rows, device="cuda")
    for start in range(0, rows, 1024):
        part = source[start : start + 1024].float()
        chosen = part.gather(1, labels[start : start + 1024, None]).squeeze(1)
        current[start : start + 1024] = chosen - part.logsumexp(1)
    noise = 0.05 * torch.randn(2, rows, device="cuda")
    adv = torch.randn(rows // length, device="cuda")
    return Batch(source, source.clone(), labels, current + noise[0], current + noise[1], adv)


def median(run: Callable[[], object], before: Callable[[], object], repeats: int = 12) -> float:
    """Milliseconds of `run` on the device; `before` is not timed."""
    return interleaved({"": run}, before, repeats)[""][0]


def interleaved(
    runs: dict[str, Callable[[], object]], before: Callable[[], object], repeats: int
) -> dict[str, tuple[float, float, float]]:
    """Median, 20th and 80th percentile of each run, all taking turns."""
    for run in runs.values():
        before()
        run()
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            before()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(SLEEP)
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            events[name].append((start, end))
    found = {}
    for name, pairs in events.items():
        times = sorted(start.elapsed_time(end) for start, end in pairs)
        fifth = len(times) // 5
        found[name] = statistics.median(times), times[fifth], times[-1 - fifth]
    return found


def copies(batch: Batch, per_element: int) -> Callable[[], object]:
    """A device copy that moves `per_element` bytes for each logit, reads and writes counted."""
    size = batch.logits.numel() * per_element // 2
    room = torch.empty(2, size, dtype=torch.uint8, device="cuda")
    return lambda: room[0].copy_(room[1])


LOSSES = {
    "sft": ("sft", {}, ()),
    "reinforce": ("reinforce", {}, ("adv",)),
    "ppo": ("ppo", {}, ("behavior", "adv")),
    "grpo": ("grpo", {}, ("behavior", "ref", "adv")),
    "grpo+entropy": ("grpo", {"entropy_coef": 0.01}, ("behavior", "ref", "adv")),
    "dapo": ("dapo", {}, ("behavior", "adv")),
    "cispo": ("cispo", {}, ("behavior", "adv")),
    "sapo": ("sapo", {}, ("behavior", "adv")),
    "gspo": ("gspo", {}, ("behavior", "adv")),
    "dpo": ("dpo", {}, ("ref",)),
}
INVENTED = """forge 1
loss gate_kl(logprob: diff [B, T] f32, entropy: diff [B, T] f32, behavior: [B, T] f32,
             ref: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  ratio = exp(clamp(logprob - behavior, -20.0, 20.0))
  d     = ref - logprob
  gain  = tanh(ratio - 1) * adv - 0.1 * sqrt(1.0 + abs(d)) * log1p(abs(logprob))
  minimize token_mean(-gain + 0.04 * (expm1(d) - d) - 0.01 * entropy, mask)
  report gate = token_mean(tanh(ratio - 1), mask)
}
"""


def ours(name: str, batch: Batch) -> Callable[[], str]:
    """Forward and backward of a loss of ours, in place."""
    if name == "invented":
        loss = forgedsl.compile_loss(INVENTED, backend="triton")
        names: tuple[str, ...] = ("behavior", "ref", "adv")
    else:
        source, params, names = LOSSES[name]
        loss = forgedsl.compile_loss(source, params=params, backend="triton")
    rows, length = batch.labels.numel(), batch.labels.numel() // batch.adv.numel()
    shape = rows // length, length
    values = {"behavior": batch.old.view(shape), "ref": batch.ref.view(shape), "adv": batch.adv}
    inputs = {key: values[key] for key in names}
    counts = {
        "num_tokens": torch.tensor(float(rows), device="cuda"),
        "num_sequences": torch.tensor(float(shape[0]), device="cuda"),
    }
    logits = batch.logits.detach().view(*shape, -1).requires_grad_()

    def run() -> str:
        out = loss(logits=logits, labels=batch.labels.view(shape), inplace=True, **counts, **inputs)
        out.loss.backward()
        logits.grad = None
        return out.kernel

    return run


def liger(batch: Batch, level: str) -> Callable[[], object]:
    """Liger's kernel for the same loss, in place; its logits have one position more."""
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss

    count = batch.adv.numel()
    shape = count, batch.labels.numel() // count
    logits = torch.empty(count, shape[1] + 1, batch.logits.shape[1], dtype=torch.bfloat16)
    logits = logits.cuda().normal_().requires_grad_()
    mask = torch.ones(shape, device="cuda")

    def run() -> None:
        loss, _ = triton_grpo_loss(
            logits,
            batch.old.view(shape),
            None,
            batch.labels.view(shape),
            batch.adv,
            mask,
            temperature=1.0,
            beta=0.0,
            eps_low=0.2,
            eps_high=0.28,
            inplace=True,
            loss_type="dapo" if level == "token" else "grpo",
            importance_sampling_level=level,
            reduce=True,
        )
        loss.backward()
        logits.grad = None

    return run


def plain(batch: Batch, form: str, compiled: bool) -> Callable[[], object]:
    """The loss in plain torch, from cross-entropy or from log_softmax, compiled or not."""
    adv = batch.adv.repeat_interleave(batch.labels.numel() // batch.adv.numel())

    def objective(logits: Tensor) -> Tensor:
        if form == "cross-entropy":
            logprob = -torch.nn.functional.cross_entropy(
                logits.float(), batch.labels, reduction="none"
            )
        else:
            logprob = torch.log_softmax(logits.float(), 1).gather(1, batch.labels[:, None])[:, 0]
        ratio = torch.exp(logprob - batch.old)
        return -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.28) * adv).mean()

    function = torch.compile(objective, dynamic=False) if compiled else objective
    logits = batch.logits.detach().requires_grad_()

    def run() -> None:
        function(logits).backward()
        logits.grad = None

    return run


def report(
    title: str, found: dict[str, tuple[float, float, float]], floors: dict[str, str]
) -> None:
    """One line a provider: time and its ratio to its floor."""
    print(f"\n{title}")
    for name, (mid, low, high) in found.items():
        floor = found[floors.get(name, next(iter(found)))][0]
        print(f"  {name:28s} {mid:8.3f} ms [{low:.3f}, {high:.3f}]  {mid / floor:6.3f}", flush=True)


def bench_logits(options: argparse.Namespace) -> None:
    for vocabulary in options.vocabulary or VOCABULARIES:
        batch = make(vocabulary, options.rows)
        runs: dict[str, Callable[[], object]] = {
            "copy 4 B": copies(batch, 4),
            "copy 6 B": copies(batch, 6),
        }
        names = options.loss or [*LOSSES, "invented"]
        runs |= {f"ours {name}": ours(name, batch) for name in names}
        if options.others:
            runs |= {f"liger {level}": liger(batch, level) for level in ("token", "sequence")}
        if options.plain:
            runs["eager log_softmax"] = plain(batch, "log_softmax", compiled=False)
            for form in ("cross-entropy", "log_softmax"):
                runs[f"compiled {form}"] = plain(batch, form, compiled=True)
        found = interleaved(runs, lambda b=batch: _refresh(b), options.repeats)
        moved = batch.logits.numel() * 4 / found["copy 4 B"][0] / 1e9
        coupled = {"ours gspo", "ours dpo", "liger sequence"}
        floors = {name: "copy 6 B" if name in coupled else "copy 4 B" for name in found}
        state = "VOID, " if moved < 3.9 else ""
        report(f"V={vocabulary} N={options.rows}: {state}copy {moved:.2f} TB/s", found, floors)


def _refresh(batch: Batch) -> None:
    with torch.no_grad():
        batch.logits.copy_(batch.source)


def bench_linear(options: argparse.Namespace) -> None:
    for vocabulary, width in ((151936, 2048), (128256, 4096)):
        linear_shape(options, vocabulary, width)


def linear_shape(options: argparse.Namespace, vocabulary: int, width: int) -> None:
    """All providers at one shape, against the three products alone."""
    torch.manual_seed(0)
    rows, chunk = options.rows, 4096
    hidden = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    weight = (torch.randn(vocabulary, width, device="cuda") / width**0.5).bfloat16()
    labels = torch.randint(vocabulary, (rows,), device="cuda")
    old = token_logprobs(hidden, weight, labels, chunk_rows=chunk)
    old = old.float() + 0.05 * torch.randn(rows, device="cuda")
    adv = torch.randn(rows // LENGTH, device="cuda")
    hidden.requires_grad_()
    weight.requires_grad_()
    call = {"hidden": hidden, "weight": weight, "labels": labels, "chunk_rows": chunk}
    call["seq_id"] = torch.arange(rows, device="cuda") // LENGTH
    call["num_tokens"] = torch.tensor(float(rows), device="cuda")
    call["num_sequences"] = torch.tensor(float(rows // LENGTH), device="cuda")

    def run(name: str, **more: object) -> Callable[[], object]:
        loss = forgedsl.compile_loss(name, backend="triton")
        inputs = {"behavior": old, "adv": adv}
        inputs = {key: value for key, value in inputs.items() if key in loss.input_names}

        def step() -> str:
            out = loss.linear(**call, **inputs, **more)
            out.loss.backward()
            hidden.grad = weight.grad = None
            return out.kernel

        return step

    runs: dict[str, Callable[[], object]] = {
        "three products": products(hidden.detach(), weight.detach(), chunk),
        "ours dapo, fp32 logits": run("dapo"),
        "ours dapo, bf16 logits": run("dapo", logits_dtype=torch.bfloat16),
        "ours sft, fp32 logits": run("sft"),
        "ours gspo, fp32 logits": run("gspo"),
    }
    bounded: dict[str, Callable[[], object]] = {
        "four products": products(hidden.detach(), weight.detach(), chunk, logits=2),
        "ours dapo, 256 MiB": run("dapo", workspace=WORKSPACE),
    }
    if options.others:
        runs["liger fused linear"] = _liger_linear(hidden, weight, labels, old, adv)
    peak = above(runs["ours dapo, fp32 logits"]) / 2**30
    outputs = 2 * (hidden.numel() + weight.numel())
    space = (above(bounded["ours dapo, 256 MiB"]) - outputs) / 2**20
    found = interleaved(runs, lambda: None, options.repeats)
    rate = 6 * rows * width * vocabulary / found["three products"][0] / 1e9
    title = f"V={vocabulary} H={width} N={rows}: {rate:.0f} TF, {peak:.2f} GiB above the inputs"
    report(title, found, {})
    # apart: the products run faster after a run that lets the device cool
    found = interleaved(bounded, lambda: None, options.repeats)
    report(f"the same with workspace=256 MiB: {space:.0f} MiB besides the gradients", found, {})


def above(run: Callable[[], object]) -> int:
    """Bytes that `run` needs at its peak above what is there already, on its second call."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - held


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


def _liger_linear(
    hidden: Tensor, weight: Tensor, labels: Tensor, old: Tensor, adv: Tensor
) -> Callable[[], object]:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False, epsilon_high=0.28)
    shape = adv.numel(), labels.numel() // adv.numel()
    mask = torch.ones(shape, device="cuda")

    def run() -> None:
        value, _ = loss(
            hidden.view(*shape, -1),
            weight,
            labels.view(shape),
            mask,
            adv,
            old_per_token_logps=old.view(shape),
        )
        value.backward()
        hidden.grad = weight.grad = None

    return run


def candidates(kernel: str, vocabulary: int) -> list[launching.Config]:
    """Launch parameters worth a try: rows read twice, and rows kept in shared memory."""
    C = launching.Config
    if kernel == "statistics":
        return [
            C(8192, 8, 4, 1), C(8192, 8, 4, 3), C(4096, 4, 8, 1), C(4096, 8, 6, 2),
            C(4096, 4, 8, 3), C(8192, 16, 4, 1), C(2048, 4, 8, 4),
        ]  # fmt: skip
    if kernel == "apply":
        return [
            C(8192, 8, 4, 1), C(8192, 8, 4, 2), C(4096, 4, 8, 1), C(4096, 8, 6, 1),
            C(2048, 4, 12, 1), C(4096, 4, 12, 2), C(16384, 16, 2, 1),
        ]  # fmt: skip
    if vocabulary <= 57344:
        return [
            C(4096, 8, 1, kernel="row"), C(8192, 4, 1, kernel="row"), C(4096, 4, 1, kernel="row"),
            C(4096, 4, 3, kernel="stream", slots=9, ahead=3),
        ]  # fmt: skip
    return [
        C(8192, 8, 1, kernel="stream", slots=14, ahead=3),
        C(8192, 8, 1, kernel="stream", slots=14, ahead=4),
        C(16384, 8, 1, kernel="stream", slots=7, ahead=2),
        C(16384, 16, 1, kernel="stream", slots=7, ahead=2),
    ]


def tune(options: argparse.Namespace) -> None:
    """Each kernel's candidates, by the time of a loss that uses it, over its floor."""
    users = (("fused", "dapo", 4), ("statistics", "gspo", 6), ("apply", "gspo", 6))
    for vocabulary in options.vocabulary or VOCABULARIES:
        batch = make(vocabulary, options.rows)
        floors = {size: median(copies(batch, size), lambda: None) for size in (4, 6)}
        moved = batch.logits.numel() * 4 / floors[4] / 1e9
        print(f"\nV={vocabulary}: copy {floors[4]:.3f} ms, {moved:.2f} TB/s", flush=True)
        original = launching.config
        for kernel, loss, size in users:
            for chosen in candidates(kernel, vocabulary):
                launching_config(only(kernel, chosen, original))
                spent = median(ours(loss, batch), lambda b=batch: _refresh(b), 8)
                print(
                    f"  {kernel:10s} {spent / floors[size]:.3f}  {spent:.3f} ms {chosen}",
                    flush=True,
                )
        launching_config(original)


def only(
    kernel: str, chosen: launching.Config, others: Callable[..., launching.Config]
) -> Callable[..., launching.Config]:
    """Launch parameters with one kernel's replaced."""
    return lambda name, *rest: chosen if name == kernel else others(name, *rest)


def launching_config(function: Callable[..., launching.Config]) -> None:
    from forgedsl.runtime.losses import fused

    fused.config = function


def check(options: argparse.Namespace) -> None:
    """Loss and gradient on the GPU against float64, and a rerun."""
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
    """Gradients of hidden and weight in bf16, whole, in chunks, compacted and coupled."""
    torch.manual_seed(1)
    hidden = torch.randn(384, 256, device="cuda", dtype=torch.bfloat16)
    weight = (torch.randn(32000, 256, device="cuda") / 4).bfloat16()
    labels = torch.randint(32000, (384,), device="cuda")
    old = token_logprobs(hidden, weight, labels) + 0.05 * torch.randn(384, device="cuda")
    call = {"labels": labels, "seq_id": torch.arange(384, device="cuda") // 32}
    call["mask"] = torch.arange(384, device="cuda") % 7 != 3
    for name in ("dapo", "gspo"):
        adv = torch.randn(12, device="cuda")
        adv[3] = 0.0
        loss, plain = (forgedsl.compile_loss(name, backend=b) for b in ("triton", "torch"))
        wide = [part.double().requires_grad_() for part in (hidden, weight)]
        out = plain.linear(
            hidden=wide[0], weight=wide[1], behavior=old.double(), adv=adv.double(), **call
        )
        want = torch.autograd.grad(out.loss, wide)
        for more in ({}, {"chunk_rows": 100}, {"chunk_rows": 100, "compact": True},
                     {"logits_dtype": torch.bfloat16}):  # fmt: skip
            pair = [part.clone().requires_grad_() for part in (hidden, weight)]
            out = loss.linear(hidden=pair[0], weight=pair[1], behavior=old, adv=adv, **call, **more)
            got = torch.autograd.grad(out.loss, pair)
            errors = [(g.double() - w).norm() / w.norm() for g, w in zip(got, want, strict=True)]
            print(f"linear {name} {out.kernel} {more}: {errors[0]:.1e} {errors[1]:.1e}", flush=True)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("logits", "linear", "tune", "check"))
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--vocabulary", type=int, action="append")
    parser.add_argument("--loss", action="append")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--others", action="store_true", help="Liger's kernels too")
    parser.add_argument("--plain", action="store_true", help="eager and compiled torch too")
    options = parser.parse_args()
    device = torch.cuda.get_device_properties(0)
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    print(device.name, json.dumps(versions))
    {"logits": bench_logits, "linear": bench_linear, "tune": tune, "check": check}[options.what](
        options
    )


if __name__ == "__main__":
    main()
