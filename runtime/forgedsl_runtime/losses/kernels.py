"""Launch the kernels of a loss: arguments by name, block sizes from a table, no host waits.

    Kernels(name, text)      the Triton module generated for a loss, loaded on first use
    kernels.launch(name, grid, arguments, **options)

A kernel names its arguments: `logprob_ptr` is the tensor called logprob. Block sizes come from
tuning.json, by kernel, GPU architecture, dtype of the logits and vocabulary size; they never depend
on the number of rows, so results of a row are bitwise independent of the other rows.
"""

from __future__ import annotations

import functools
import json
import linecache
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

INTERPRET = "TRITON_INTERPRET"
SEQUENCE_BLOCK = 512
"""tokens that a program over sequences takes at once, the same for all lengths"""
INTERPRETED_BLOCK = 4
"""The same in Triton's interpreter; small, so that short sequences of tests take several
iterations."""
SEQUENCE_OPTIONS = {"num_warps": 4, "maxnreg": 128}
"""Without `maxnreg` ptxas chooses a lower limit of registers, at which some losses spill."""


@dataclass(frozen=True, slots=True)
class Config:
    """Launch settings of a kernel over the vocabulary; `programs` is per multiprocessor."""

    block: int
    num_warps: int
    programs: int
    num_stages: int = 1
    kernel: str = ""
    """variant of `fused` by how it keeps a row on chip: "row" (in shared memory), "stream" (in
    shared memory and registers), "pair" (the same, on two multiprocessors); "": rows are read
    twice"""
    slots: int = 0
    """stream, pair: tiles in shared memory"""
    ahead: int = 0
    """stream, pair: number of slots for tiles that are fetched in advance; the other slots hold
    tiles that wait to be written back"""
    lead: int = 0
    """stream, pair: tiles of the next row that are read before the gradient of this row is
    computed"""
    parts: int = 1
    """for rows kept on chip: number of parts in which a tile is processed. A whole tile at a time
    needs more registers than there are, which would spill"""
    registers: int = 0
    """register limit per thread; for some vocabularies ptxas picks a limit that causes spills"""

    @property
    def options(self) -> dict[str, int]:
        """Return the launch options."""
        bound = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **bound}


class Kernels:
    """The generated Triton module of a loss."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.counters: dict[Any, Tensor] = {}

    @functools.cached_property
    def module(self) -> ModuleType:
        return load_kernels(self.name, self.text)

    @property
    def local(self) -> bool:
        return bool(self.module.PHASE == "token-local")

    def launch(self, name: str, grid: int, arguments: Mapping[str, Any], **options: Any) -> None:
        """Run kernel `name` on a one-dimensional grid, with its arguments by name."""
        if grid == 0:
            return
        kernel = getattr(self.module, name)
        given = {key: arguments[key] for key in kernel.arg_names}
        kernel[(grid,)](**given, **options, **overlap_option(given.get("OVERLAP", False)))

    def counter(
        self, device: torch.device, purpose: str, *size: int, dtype: torch.dtype = torch.int32
    ) -> Tensor:
        """Return the counter for a purpose; the first call makes it, with zeros. Programs increment
        three of them and set them back to zero: `done` (to find the last program), `taken` (the
        next row) and `counted` (counts). `turns` and `mail` have an entry per program and keep
        their values."""
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        key = device, stream, purpose
        if key not in self.counters:
            self.counters[key] = torch.zeros(size, dtype=dtype, device=device)
        return self.counters[key]


def available(device: torch.device) -> bool:
    """True if kernels can run on this device."""
    return device.type == "cuda" or os.environ.get(INTERPRET) == "1"


def require(device: torch.device) -> None:
    """Check that kernels can run on this device; backend="triton" never falls back.

    Raises:
        RuntimeError: they cannot.
    """
    if not available(device):
        raise RuntimeError(
            f"backend='triton' needs tensors on a GPU, these are on {device}; "
            f"set {INTERPRET}=1 before Python starts to run the kernels in Triton's interpreter, "
            "or use backend='torch'"
        )


@functools.cache
def patch_interpreter() -> None:
    """Patch a bug of Triton's interpreter: a broadcast boolean scalar must keep its dtype."""
    import numpy as np
    from triton.runtime import interpreter

    def create_splat(self: Any, type_: Any, value: Any) -> Any:
        data = np.full(type_.shape, value.data.reshape(-1)[0], dtype=value.data.dtype)
        return interpreter.TensorHandle(data, value.dtype.scalar)

    interpreter.InterpreterBuilder.create_splat = create_splat


@functools.cache
def load_kernels(name: str, text: str) -> ModuleType:
    """Load the generated module. Triton reads its source again, so its lines must be in
    linecache."""
    if os.environ.get(INTERPRET) == "1":
        patch_interpreter()
    filename = f"<kernels {name} {hash(text) & 0xFFFFFFFF:08x}>"
    module = ModuleType(f"forgedsl_kernels_{name}")
    module.__file__ = filename
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), module.__dict__)
    return module


@functools.cache
def table() -> dict[str, Any]:
    """Launch parameters found by benchmarks/losses.py --tune, by architecture."""
    text = resources.files("forgedsl_runtime.losses").joinpath("tuning.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@functools.cache
def config(kernel: str, vocabulary: int, logits: torch.dtype, device: torch.device) -> Config:
    """Return the launch settings of a kernel, for the next larger vocabulary in the table."""
    if device.type != "cuda":
        return Config(
            block=min(1024, max(16, 1 << (vocabulary - 1).bit_length())), num_warps=1, programs=4
        )
    major, minor = torch.cuda.get_device_capability(device)
    by_arch = table()
    entries = by_arch.get(f"sm_{major}{minor}", by_arch["default"])[kernel][str(logits)[6:]]
    fitting = [size for size in entries if int(size) >= vocabulary] or [max(entries, key=int)]
    return Config(**entries[min(fitting, key=int)])


@functools.cache
def can_overlap(device: torch.device) -> bool:
    """True if a kernel may be launched before the preceding one on the stream has ended."""
    if device.type != "cuda" or torch.version.hip or os.environ.get(INTERPRET) == "1":
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def overlap_option(overlap: bool) -> dict[str, bool]:
    """Return the launch option for a kernel that itself waits for the preceding one."""
    return {"launch_pdl": True} if overlap else {}


def tma_descriptor(logits: Tensor, block: int) -> tuple[Any, int]:
    """Return a TMA descriptor of bf16 logits, and the size of its last axis (INNER of the kernels).
    It views the logits as `[N, V / 2 / INNER, INNER]` 32-bit words, each of two logits; a tile has
    `block` logits."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    pairs = logits.view(torch.int32)
    rows, width = pairs.shape
    inner = math.gcd(width, 32)
    layout = NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=3)
    shape, strides = [rows, width // inner, inner], [pairs.stride(0), inner, 1]
    tile = [1, block // 2 // inner, inner]
    return TensorDescriptor(pairs, shape, strides, tile, layout), inner


@functools.cache
def num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def scale(temperature: float, vocabulary: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `log2(e) / T`, `1 / T` and `1 / V` as a tensor, so that kernels read them at full
    precision."""
    factors = [1.4426950408889634 / temperature, 1.0 / temperature, 1.0 / vocabulary]
    return torch.tensor(factors, dtype=dtype, device=device)
