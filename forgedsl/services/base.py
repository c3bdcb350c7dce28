"""Facts of a kind of service for the compiler: passes ask it, and it knows no pass.

A kind is a folder: `facts` (settings and capabilities), `job` (its class in a job), `lowering`
(settings and plan -> that class), `memory` and `cost`. The facts import the rest when it is asked
for: `forgec lint` needs the facts alone. To add one: docs/design/services.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Diagnostic
from forgedsl.families.base import Dims
from forgedsl.ir.program import Decl, Program
from forgedsl.records import dataclass, replace
from forgedsl.settings import (
    AUTO,
    BOOL,
    COUNT,
    FRACTION,
    NATURAL,
    PART,
    POSITIVE,
    SOME,
    STR,
    Derived,
    Impact,
    Kind,
    Setting,
    Type,
    word,
)
from forgedsl.sizes.memory import MAX_RUNNING, RankMemory, Request, itemsize
from forgedsl.sizes.meshes import MeshPlan
from forgedsl.sizes.params import PRECISIONS, num_params

if TYPE_CHECKING:
    from forgedsl.job.parts import Service

NUM: Impact = "numerics"
PLACE: Impact = "placement"
OPTIONAL_COUNT = replace(COUNT, optional=True)
GIB = 2**30


def row(name: str, type_: Type, default: object, impact: Impact, doc: str) -> Setting:
    return Setting(name=name, type=type_, default=default, impact=impact, doc=doc)


_DEVICE = Setting(
    name="device",
    type=Type(base="word", words=("gpu", "cpu"), auto=True),
    default=Derived("gpu where the cluster has GPUs, else cpu"),
    impact="placement",
    doc="where it computes",
)
_GPUS = Setting(
    name="gpus",
    type=NATURAL,
    default=Derived("1 on device gpu, 0 on cpu"),
    impact="placement",
    doc="GPUs per process",
)
COMMON = (
    row("hosts", COUNT, 1, PLACE, "hosts"),
    _GPUS,
    row("cpus", replace(COUNT, auto=True), AUTO, PLACE, "threads of each of its processes"),
    _DEVICE,
    row("dtype", word("f32", "bf16", "f16"), Derived("the model's"), NUM, "dtype in use"),
    row("mesh_name", STR, Derived("the service's name"), PLACE, "name of its process mesh"),
)
SAMPLING = (
    row("sampling.temperature", replace(POSITIVE, usual=(0.0, 5.0)), 1.0, NUM,
         "divides the logits"),
    row("sampling.top_p", PART, 1.0, NUM, "keep the likeliest tokens of this mass"),
    row("sampling.top_k", OPTIONAL_COUNT, None, NUM, "keep so many tokens"),
    row("sampling.min_p", FRACTION, 0.0, NUM, "keep tokens this likely against the best"),
    row("sampling.max_tokens", replace(COUNT, optional=True), None, NUM,
         "longest completion"),
    row("sampling.min_tokens", NATURAL, 0, NUM, "shortest completion"),
    row("sampling.stop", Type(base="list", item=STR, auto=True), AUTO, NUM,
         "strings that end a completion; auto is the model's"),
)  # fmt: skip
"""of every kind that samples"""


TEMPERATURE = row(
    "temperature", replace(SOME, usual=(0.01, 5.0)), 1.0, NUM,
    "divides the logits before every log-prob",
)  # fmt: skip
"""of every kind that measures log-probs"""
BATCH = (
    row("batch.seq_len", replace(COUNT, auto=True), AUTO, NUM,
         "tokens per packed row; auto is the model's context"),
    row("batch.rows", replace(OPTIONAL_COUNT, auto=True), None, NUM,
         "rows per rank and microbatch; auto is as many as are of use and fit"),
    row("batch.tokens", OPTIONAL_COUNT, None, NUM, "or tokens per rank and microbatch"),
    row("batch.pack", BOOL, True, NUM,
         "several sequences share a row, or each has its own"),
    row("batch.accumulate", replace(COUNT, auto=True), AUTO, NUM,
         "microbatches per step; auto is as many as the batch needs"),
)  # fmt: skip
"""of every kind that trains"""


class Capability(StrEnum):
    """Capability of a service in a flow; passes and the runtime ask for these, not for kinds."""

    SAMPLES = "samples"  # completes prompts, and takes the weights of a sync
    MEASURES = "measures"  # says log-probs, and values, of tokens that exist
    TRAINS = "trains"  # is trained where the flow steps it, and frozen elsewhere
    JUDGES = "judges"  # grades completions, as the value of a reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A declared service with its place in the plan, for its class in a job."""

    decl: Decl
    mesh: MeshPlan
    dtype: str
    rank: RankMemory | None
    rows: int = 0
    """of a microbatch, of what trains or measures"""
    seq_len: int = 0
    stepped: bool
    """the flow updates its weights"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingCost:
    """Inputs of a sampler's cost model, beside its model and device."""

    shares_prompts: bool = False
    """completions of a prompt read its keys and values once"""
    most: int = MAX_RUNNING
    """completions decoded at once"""
    kv_itemsize: int
    """bytes of a number among its keys and values"""
    rounded: bool = False
    """weights of layers are in fp8"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """Inputs of the cost model of a trained or frozen model, beside its model and device."""

    passes: float = 1.0
    """forward passes that the work on a microbatch is worth"""
    fetched: float = 0.0
    """seconds that each microbatch waits for weights from the host's memory, or for experts"""
    updated: float = 0.0
    """seconds that the host takes for an update"""


TRAINED_PASSES = 3.0
"""forward passes that a forward and backward pass are worth"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKind:
    """One kind: `service NAME : KIND(model) { ... }`. A kind with a class in a job is a subclass
    that overrides `job` and `lowered`.

    schema    its settings, and what of them this version does not carry out (`support`)
    can       what it does for a flow: which statements it has, and what passes expect of it
    needs     settings without default that one of these reads: (capability, setting, why)
    degrees   parallel degrees, whose product is the processes of one replica; `spread` is the one
              that takes what the others leave
    even      what of a model `tp` must divide, by the fields of its dimensions
    measure   prefix of the settings that say what its log-probs are of (`sampling.`)
    process   bytes of a process that has imported its parts and holds no model (measured)
    learning  prefixes of the settings that only a service reads which the flow steps
    remote    it runs elsewhere: a string names its model, and the plan gives it nothing
    """

    name: str
    schema: Kind
    can: frozenset[Capability]
    needs: tuple[tuple[Capability, str, str], ...] = ()
    degrees: tuple[str, ...] = ()
    spread: str = ""
    even: tuple[str, ...] = ("heads",)
    measure: str = ""
    process: int = GIB
    learning: tuple[str, ...] = ()
    remote: bool = False
    in_python: bool = False
    """generated programs have a method of its name"""
    claim: str = ""
    """setting with the part of a GPU that it claims"""
    cpu_heads: tuple[int, ...] = ()
    """sizes of attention heads that it can do on a CPU; any where there are none"""
    within: str = ""
    """a degree that has no processes of its own: it divides the others among them"""

    @property
    def samples(self) -> bool:
        return Capability.SAMPLES in self.can

    @property
    def trains(self) -> bool:
        return Capability.TRAINS in self.can

    @property
    def judges(self) -> bool:
        return Capability.JUDGES in self.can

    @property
    def replicated(self) -> bool:
        """True if it has replicas, each of which answers alone."""
        return self.schema.setting("replicas") is not None

    # ---- mistakes

    def check(self, decl: Decl, *, trained: bool) -> list[Diagnostic]:
        """Report settings that do not go together."""
        return []

    # ---- in a job

    def job(self) -> type[Service]:
        """Return its class in a job."""
        raise NotImplementedError(f"{self.name}: a kind that is not remote has a class in a job")

    def lowered(self, placed: Placed) -> Service:
        """Return one service of a job."""
        raise NotImplementedError(f"{self.name}: a kind that is not remote is lowered")

    # ---- memory

    def rank(
        self, request: Request, mesh: MeshPlan, others: Mapping[str, RankMemory]
    ) -> RankMemory | None:
        """Return the memory of one rank, in each phase of a step; None counts its process alone.
        `others` are the ranks of the kinds before it that are known."""
        return None

    def remedies(
        self, request: Request, mesh: MeshPlan, available: float, host: int
    ) -> Iterator[str]:
        """Changes with which a rank fits the `available` bytes of its GPU, where `host` bytes of
        the host's memory are free; each was tried."""
        yield from ()

    # ---- cost

    def sampling(self, program: Program, decl: Decl) -> SamplingCost:
        """Return the cost of sampling with this service."""
        return SamplingCost(kv_itemsize=itemsize(program, decl))

    def training(
        self, request: Request, mesh: MeshPlan, dims: Dims, *, trained: bool
    ) -> TrainingCost:
        """Return the cost of a microbatch and of an update, of a trained or frozen model."""
        return TrainingCost(passes=TRAINED_PASSES if trained else 1.0)

    def checkpoint_bytes(self, decl: Decl, dims: Dims) -> int:
        """Bytes of a checkpoint: weights and moments."""
        weight, moments, _ = PRECISIONS["f32"]
        return (weight + moments) * num_params(dims)
