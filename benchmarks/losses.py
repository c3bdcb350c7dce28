"""Time losses against the memory floor and against other implementations, in one process.

    python benchmarks/losses.py logits    forward and backward from bf16 logits
    python benchmarks/losses.py random    the same for random losses, those of the test suite
    python benchmarks/losses.py plain     the same with a mask, with and without counts of the step
    python benchmarks/losses.py linear    from hidden states and lm_head
    python benchmarks/losses.py compact   the same, some rows of zero advantage left out
    python benchmarks/losses.py tune      launch parameters of the fused kernel
    python benchmarks/losses.py check     results on the GPU against float64

    python benchmarks/losses.py linear --vocabulary 151936 --width 1024
    V=201088; python benchmarks/losses.py check --vocabulary $V
    python benchmarks/losses.py logits --vocabulary $V --vocabulary 262144

How times are taken says `loss_timing.py`. Logits are random and written anew before each run,
outside the timed region.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from linear_losses import bench_compact, bench_linear
from loss_checks import check
from loss_timing import (
    INVENTED,
    LOSSES,
    ROWS,
    VOCABULARIES,
    Batch,
    copies,
    interleaved,
    make,
    report,
)
from torch import Tensor

import forgedsl
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.losses import kernels as launching


def ours(name: str, batch: Batch) -> Callable[[], str]:
    """Forward and backward of a loss of ours, in place."""
    if name == "invented":
        return timed(forgedsl.compile_loss(INVENTED, backend="triton"), batch)
    source, params, _ = LOSSES[name]
    return timed(forgedsl.compile_loss(source, params=params, backend="triton"), batch)


def timed(
    loss: LossFunction,
    batch: Batch,
    *,
    mask: Tensor | None = None,
    counted: bool = True,
    by_autograd: bool = False,
) -> Callable[[], str]:
    """Forward and backward of a loss, in place. `counted` says whether it is given the counts,
    `by_autograd` whether `out.loss.backward()` is called instead of `out.backward()`."""
    rows, length = batch.labels.numel(), batch.labels.numel() // batch.adv.numel()
    shape = rows // length, length
    values = {"behavior": batch.old.view(shape), "ref": batch.ref.view(shape), "adv": batch.adv}
    inputs = {key: values[key] for key in loss.input_names}
    if loss.paired and "adv" in inputs:
        inputs["adv"] = batch.adv[::2].contiguous()
    call: dict[str, Tensor] = {"labels": batch.labels.view(shape)}
    if mask is not None:
        call["mask"] = mask.view(shape)
    if counted:
        tokens = float(rows) if mask is None else float(mask.sum())
        call["num_tokens"] = torch.tensor(tokens, device="cuda")
        call["num_sequences"] = torch.tensor(float(shape[0]), device="cuda")
    logits = batch.logits.detach().view(*shape, -1).requires_grad_()

    def run() -> str:
        out = loss(logits=logits, inplace=True, **call, **inputs)
        if by_autograd:
            out.loss.backward()
        else:
            out.backward()
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


def bench_plain(options: argparse.Namespace) -> None:
    """With and without a mask, with and without counts. Rows that do not count cost less."""
    for vocabulary in options.vocabulary or VOCABULARIES[:1]:
        batch = make(vocabulary, options.rows)
        every = torch.ones_like(batch.labels, dtype=torch.bool)
        masks = {"": None, ", mask": every, ", 10 % masked": torch.rand_like(batch.old) >= 0.1}
        runs: dict[str, Callable[[], object]] = {"copy 4 B": copies(batch, 4)}
        for name in options.loss or ["dapo"]:
            source, params, _ = LOSSES[name]
            loss = forgedsl.compile_loss(source, params=params, backend="triton")
            for counted in (True, False):
                for masked, mask in masks.items():
                    title = f"ours {name}{', counts' if counted else ''}{masked}"
                    runs[title] = timed(loss, batch, mask=mask, counted=counted)
            title = f"ours {name}, counts, loss.backward()"
            runs[title] = timed(loss, batch, by_autograd=True)
        found = interleaved(runs, lambda b=batch: _refresh(b), options.repeats)
        moved = batch.logits.numel() * 4 / found["copy 4 B"][0] / 1e9
        state = "VOID, " if moved < 3.9 else ""
        report(f"V={vocabulary} N={options.rows}: {state}copy {moved:.2f} TB/s", found, {})


def bench_random(options: argparse.Namespace) -> None:
    """Losses drawn from seeds: the ratio of each to its floor, and how far they spread."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "compiler_tests/property"))
    import random_losses

    losses = {
        f"seed {seed}": forgedsl.compile_loss(random_losses.from_seed(seed), backend="triton")
        for seed in range(options.count)
    }
    for vocabulary in options.vocabulary or VOCABULARIES:
        batch = make(vocabulary, options.rows)
        ratios: dict[str, list[float]] = {"token-local": [], "coupled": []}
        names = list(losses)
        for first in range(0, len(names), 8):
            chosen = names[first : first + 8]
            runs: dict[str, Callable[[], object]] = {
                "token-local": copies(batch, 4),
                "coupled": copies(batch, 6),
            }
            runs |= {name: timed(losses[name], batch) for name in chosen}
            found = interleaved(runs, lambda b=batch: _refresh(b), options.repeats)
            for name in chosen:
                kind = "token-local" if losses[name].phase == "token-local" else "coupled"
                ratios[kind].append(found[name][0] / found[kind][0])
        for kind, of_kind in ratios.items():
            spread = max(of_kind) / min(of_kind) - 1
            listed = " ".join(f"{ratio:.3f}" for ratio in of_kind)
            print(f"V={vocabulary} {len(of_kind)} random {kind} losses: {listed}; "
                  f"spread {spread:.1%}", flush=True)  # fmt: skip


def _refresh(batch: Batch) -> None:
    with torch.no_grad():
        batch.logits.copy_(batch.source)


DEVICE = torch.device("cuda")
PAIRS = [
    launching.Config(8192, 8, 1, kernel="pair", slots=14, ahead=ahead, lead=lead, parts=4)
    for ahead, lead in ((3, 0), (5, 0), (4, 1), (5, 2), (6, 2), (6, 3))
]
"""rows on two multiprocessors"""
STREAMS = [
    *(
        launching.Config(
            8192, 8, 2, kernel="stream", slots=7, ahead=ahead, parts=parts, registers=128
        )
        for ahead, parts in ((2, 4), (1, 4), (2, 2), (1, 2))
    ),
    *(
        launching.Config(4096, 8, 2, kernel="stream", slots=14, ahead=ahead, parts=2, registers=128)
        for ahead in (3, 4, 5)
    ),
    launching.Config(4096, 4, 2, kernel="stream", slots=14, ahead=4, parts=2, registers=255),
    *(
        launching.Config(8192, 8, 1, kernel="stream", slots=14, ahead=3, parts=parts)
        for parts in (2, 4)
    ),
    *(
        launching.Config(16384, 8, 1, kernel="stream", slots=7, ahead=3, parts=parts, registers=255)
        for parts in (1, 2, 4, 8)
    ),
]
"""rows of 128 KB and a little more: two programs on a multiprocessor, and one"""


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
            C(4096, 8, 1, kernel="row", parts=2),
            C(4096, 4, 3, kernel="stream", slots=9, ahead=3),
        ]  # fmt: skip
    if vocabulary > 163840:
        return [C(16384, 16, 2), *PAIRS]
    if vocabulary <= 81920:
        return STREAMS
    return [
        C(8192, 8, 1, kernel="stream", slots=14, ahead=3, parts=4),
        C(8192, 8, 1, kernel="stream", slots=14, ahead=4, parts=4),
        C(16384, 8, 1, kernel="stream", slots=7, ahead=2),
        C(16384, 16, 1, kernel="stream", slots=7, ahead=2),
    ]


def tune(options: argparse.Namespace) -> None:
    """Each kernel's candidates, by the time of a loss that uses it, over its floor. The candidates
    of a kernel and the floor take turns."""
    users = [
        ("fused", "dapo", 4), ("fused", "grpo+entropy", 4),
        ("statistics", "gspo", 6), ("apply", "gspo", 6),
    ]  # fmt: skip
    if options.loss:
        users = [user for user in users if user[1] in options.loss]
    original = launching.config
    for vocabulary in options.vocabulary or VOCABULARIES:
        batch = make(vocabulary, options.rows)
        print(f"\nV={vocabulary}", flush=True)
        for kernel, loss, size in users:
            runs: dict[str, Callable[[], object]] = {"floor": copies(batch, size)}
            for chosen in [launching.config(kernel, vocabulary, torch.bfloat16, DEVICE),
                           *candidates(kernel, vocabulary)]:  # fmt: skip
                run = ours(loss, batch)
                runs.setdefault(str(chosen), configured(run, only(kernel, chosen, original)))
            found = interleaved(runs, lambda b=batch: _refresh(b), options.repeats)
            floor = found.pop("floor")[0]
            for chosen, (spent, _, _) in found.items():
                print(f"  {kernel:10s} {loss:12s} {spent / floor:.3f}  {spent:.3f} ms {chosen}")
        launching_config(original)


def configured(
    run: Callable[[], object], config: Callable[..., launching.Config]
) -> Callable[[], object]:
    """Return a run with these launch parameters."""

    def with_config() -> object:
        launching_config(config)
        return run()

    return with_config


def only(
    kernel: str, chosen: launching.Config, others: Callable[..., launching.Config]
) -> Callable[..., launching.Config]:
    """Launch parameters with one kernel's replaced."""
    return lambda name, *rest: chosen if name == kernel else others(name, *rest)


def launching_config(function: Callable[..., launching.Config]) -> None:
    from forgedsl_runtime.losses import fused

    fused.config = function


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=tuple(COMMANDS))
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--vocabulary", type=int, action="append")
    parser.add_argument("--width", type=int, action="append", help="of hidden states")
    parser.add_argument("--loss", action="append")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--count", type=int, default=24, help="of random losses")
    parser.add_argument("--others", action="store_true", help="Liger's kernels too")
    parser.add_argument("--plain", action="store_true", help="eager and compiled torch too")
    options = parser.parse_args()
    device = torch.cuda.get_device_properties(0)
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    print(device.name, json.dumps(versions))
    COMMANDS[options.what](options)


COMMANDS = {
    "logits": bench_logits, "random": bench_random, "plain": bench_plain,
    "linear": bench_linear, "compact": bench_compact, "tune": tune, "check": check,
}  # fmt: skip


if __name__ == "__main__":
    main()
