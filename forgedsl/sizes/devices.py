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

    launch   for each pass of a trainer; on a GPU, what the host needs while the GPU computes
    decode   for each decode step; in addition `layer` for each layer of the model, and `token` for
             each sampled token, on the host
    again    for each token whose keys and values are recomputed after a sync, in addition to the
             time of its FLOPs; nothing is decoded meanwhile
    """

    train: float
    prefill: float
    bandwidth: float
    launch: float
    decode: float = 0.0
    layer: float = 0.0
    token: float = 0.0
    again: float = 0.0


PEAKS = {
    "B300": (2250e12, 8.0e12), "B200": (2250e12, 8.0e12), "GB200": (2250e12, 8.0e12),
    "H200": (989e12, 4.8e12), "H100": (989e12, 3.35e12), "GH200": (989e12, 4.0e12),
    "H20": (148e12, 4.0e12), "A100": (312e12, 2.0e12), "L40S": (362e12, 0.86e12),
    "L4": (121e12, 0.3e12), "A10": (125e12, 0.6e12), "V100": (125e12, 0.9e12),
    "4090": (165e12, 1.0e12), "5090": (210e12, 1.8e12), "MI300X": (1307e12, 5.3e12),
}  # fmt: skip
DEFAULT = "A100"
LINKED = frozenset({"B300", "B200", "GB200", "H200", "H100", "H20", "A100"})
"""GPU modules whose NVLink connects all GPUs of a host, unless their name says otherwise"""
CORE_FLOPS = 80e9
CORE_BANDWIDTH = 8e9
HOST_BANDWIDTH = 60e9
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
    """Return the fraction of a GPU's peak that the products and the attention of training reach, by
    the width of the model: 46 % at 1,024, 57 % at 2,048, 60 % at 2,560 (measured). Products of
    experts have fewer rows each. What FSDP copies is not part of it (`services/titan/cost.py`)."""
    dense = min(0.62, max(0.3, 0.46 + 0.11 * log2(hidden / 1024)))
    return 0.6 * dense if experts else dense


def gpu_rates(
    model: str | None, *, graphs: bool, hidden: int = 2048, experts: bool = False
) -> Rates:
    """Return the rates of a GPU by its marketing name, for a model of this width; an unknown GPU
    counts as an A100."""
    words = (model or "").upper().replace("-", " ").split()
    name = next((word for word in words if word in PEAKS), DEFAULT)
    flops, bandwidth = PEAKS[name]
    return Rates(
        train=trained_fraction(hidden, experts=experts) * flops,
        prefill=0.5 * flops,
        bandwidth=0.9 * bandwidth,
        launch=0.004,
        layer=40e-6 if graphs else 400e-6,
        token=4.5e-6,
        again=1e-6,
    )


def cpu_rates(cores: float) -> Rates:
    """Return the rates of a process with a number of CPU cores."""
    return Rates(
        train=cores * CORE_FLOPS,
        prefill=cores * CORE_FLOPS,
        bandwidth=min(HOST_BANDWIDTH, cores * CORE_BANDWIDTH),
        launch=0.005,
        decode=0.005,
    )
