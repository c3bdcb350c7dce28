"""Peak rates of devices, and the fractions of them that are reached.

The rates are published dense bf16 rates and memory bandwidths. The fractions were measured on one
and two H200 (docs/benchmarks.md) and are assumed for other GPUs. The rate of a CPU core was
measured with float32 matrix products.
"""

from __future__ import annotations

from math import log2

from forgedsl.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates that work reaches: FLOP/s (`train`, `prefill`), bytes/s (`bandwidth`), and seconds.

    launch   for each pass of a trainer; on a GPU, what the host needs while the GPU computes. In
             addition `launched` for each layer
    decode   for each decode step; in addition `layer` for each layer of the model, and `token` for
             each sampled token, on the host
    again    for each token whose keys and values are recomputed after a sync, in addition to the
             time of its FLOPs; nothing is decoded meanwhile
    """

    train: float
    prefill: float
    bandwidth: float
    launch: float
    launched: float = 0.0
    decode: float = 0.0
    layer: float = 0.0
    token: float = 0.0
    again: float = 0.0

    def pass_on_host(self, layers: int) -> float:
        """Return the seconds that the host needs for a pass of a trainer."""
        return self.launch + layers * self.launched


PEAKS = {
    "B300": (2250e12, 8.0e12), "B200": (2250e12, 8.0e12), "GB200": (2250e12, 8.0e12),
    "H200": (989e12, 4.8e12), "H100": (989e12, 3.35e12), "GH200": (989e12, 4.0e12),
    "H20": (148e12, 4.0e12), "A100": (312e12, 2.0e12), "L40S": (362e12, 0.86e12),
    "L4": (121e12, 0.3e12), "A10": (125e12, 0.6e12), "V100": (125e12, 0.9e12),
    "4090": (165e12, 1.0e12), "5090": (210e12, 1.8e12), "MI300X": (1307e12, 5.3e12),
}  # fmt: skip
DEFAULT = "A100"
HOPPER = frozenset({"H200", "H100", "GH200", "H20"})
"""GPUs whose attention the trainer computes by flash attention 4"""
FLASH_2 = 290e12
"""FLOP/s that flash attention 2 reaches at most, in long sequences (measured on an H200)"""
LINKED = frozenset({"B300", "B200", "GB200", "H200", "H100", "H20", "A100"})
"""GPU modules whose NVLink connects all GPUs of a host, unless their name says otherwise"""
CORE_FLOPS = 80e9
CORE_BANDWIDTH = 8e9
HOST_BANDWIDTH = 60e9
LAUNCHED = 0.8e-3
"""seconds of the host for a layer in a pass of a trainer, with FSDP and compiled layers. On an H200
with a slow host, a microbatch of 1,280 tokens and 36 layers took 134 ms with selective
recomputation, which is 1 ms for each layer and pass. Slow hosts take 1.2 to 1.3 times as long as
others"""
PCIE = 25e9
"""bytes/s between the memory of a host and a GPU"""
REDUCE = 12e-6
"""seconds of an all-reduce of a few tokens between GPUs of a host"""
LINK = 300e9
"""bytes/s of a large all-reduce"""


def linked(model: str | None) -> bool:
    """True if NVLink connects all GPUs of a host, by their marketing name. PCIe cards have none,
    and NVL cards are linked only in pairs, so they do not count.
    """
    words = set((model or "").upper().replace("-", " ").split())
    return bool(words & LINKED) and not words & {"PCIE", "NVL"}


def trained_fraction(hidden: int, *, experts: bool) -> float:
    """Return the fraction of a GPU's peak that the products of training reach, by the width of the
    model: 51 % at 1,024, 57 % from 2,048 on (measured). Products of experts have fewer rows each: a
    mixture of 4.24 B parameters reaches four fifths of that.
    Attention has rates of its own (`attention_rate`), and what FSDP copies is counted in
    `services/titan/cost.py`."""
    dense = min(0.58, max(0.3, 0.51 + 0.06 * log2(hidden / 1024)))
    return 0.8 * dense if experts else dense


def attention_rate(model: str | None, context: float) -> float:
    """Return the FLOP/s that attention of a trainer reaches on a GPU, forward and backward, where a
    backward pass counts twice a forward pass. It grows with the length of the sequences: measured
    on an H200, 296 TFLOP/s at 1,200 tokens and 524 at 32,000. Hopper GPUs have flash attention 4,
    others flash attention 2."""
    name = _known(model)
    flops, _ = PEAKS[name]
    most = 0.55 * flops if name in HOPPER else min(0.5 * flops, FLASH_2)
    return most * context / (context + 1000)


def gpu_rates(
    model: str | None, *, graphs: bool, hidden: int = 2048, experts: bool = False
) -> Rates:
    """Return the rates of a GPU by its marketing name, for a model of this width; an unknown GPU
    counts as an A100."""
    flops, bandwidth = PEAKS[_known(model)]
    return Rates(
        train=trained_fraction(hidden, experts=experts) * flops,
        prefill=0.5 * flops,
        bandwidth=0.9 * bandwidth,
        launch=0.004,
        launched=LAUNCHED,
        layer=40e-6 if graphs else 400e-6,
        token=4.5e-6,
        again=1e-6,
    )


def _known(model: str | None) -> str:
    """Return the name under which `PEAKS` has a GPU."""
    words = (model or "").upper().replace("-", " ").split()
    return next((word for word in words if word in PEAKS), DEFAULT)


def cpu_rates(cores: float) -> Rates:
    """Return the rates of a process with a number of CPU cores."""
    return Rates(
        train=cores * CORE_FLOPS,
        prefill=cores * CORE_FLOPS,
        bandwidth=min(HOST_BANDWIDTH, cores * CORE_BANDWIDTH),
        launch=0.005,
        decode=0.005,
    )
