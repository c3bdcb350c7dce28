"""What the benchmarks of losses share: batches, providers taking turns, and a table of their times.

Every provider runs in turn inside one loop over the same data; its time is the median of GPU events
around it, with the host far ahead of the device (a sleeping kernel before each start), so launches
cost nobody. The floor is a copy that moves as many bytes as the result must.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

VOCABULARIES = (32000, 128256, 151936)
ROWS, LENGTH = 8192, 128
SLEEP = 2_000_000
"""Clock ticks of the sleeping kernel, about a millisecond."""
LONG_SLEEP = 10 * SLEEP
"""The same where a run has a hundred launches."""


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
    runs: dict[str, Callable[[], object]],
    before: Callable[[], object],
    repeats: int,
    sleep: int = SLEEP,
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
            torch.cuda._sleep(sleep)
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


def above(run: Callable[[], object]) -> int:
    """Bytes that `run` needs at its peak above what is there already, on its second call."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - held


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


def report(
    title: str, found: dict[str, tuple[float, float, float]], floors: dict[str, str]
) -> None:
    """One line a provider: time and its ratio to its floor."""
    print(f"\n{title}")
    for name, (mid, low, high) in found.items():
        floor = found[floors.get(name, next(iter(found)))][0]
        print(f"  {name:28s} {mid:8.3f} ms [{low:.3f}, {high:.3f}]  {mid / floor:6.3f}", flush=True)
