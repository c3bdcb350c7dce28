"""The interface between the compiler and a kind of service. Passes call it; it does not know them.

A kind is a folder: `facts` (settings and capabilities), `job` (its class in a job), `lowering`
(settings and plan -> that class), `memory` and `cost`. `facts` imports the other modules on demand:
`forgec lint` needs only the facts. To add one: docs/design/services.md.
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
    NON_NEGATIVE,
    POSITIVE,
    POSITIVE_FRACTION,
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
    doc="device on which it computes",
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
    row("cpus", replace(COUNT, auto=True), AUTO, PLACE, "threads per process"),
    _DEVICE,
    row("dtype", word("f32", "bf16", "f16"), Derived("the model's"), NUM, "dtype of computation"),
    row("mesh_name", STR, Derived("the service's name"), PLACE, "name of the process mesh"),
)
SAMPLING = (
    row("sampling.temperature", replace(NON_NEGATIVE, usual=(0.0, 5.0)), 1.0, NUM,
         "divisor of the logits"),
    row("sampling.top_p", POSITIVE_FRACTION, 1.0, NUM, "sample from the most likely tokens whose "
        "total probability reaches this value"),
    row("sampling.top_k", OPTIONAL_COUNT, None, NUM, "sample from this many of the most likely "
        "tokens"),
    row("sampling.min_p", FRACTION, 0.0, NUM, "sample from tokens with at least this probability "
        "relative to the most likely one"),
    row("sampling.max_tokens", replace(COUNT, optional=True), None, NUM,
         "maximum number of tokens of a completion"),
    row("sampling.min_tokens", NATURAL, 0, NUM, "minimum number of tokens of a completion"),
    row("sampling.stop", Type(base="list", item=STR, auto=True), AUTO, NUM,
         "strings that end a completion; auto: those of the model"),
)  # fmt: skip
"""settings of every kind that samples"""


TEMPERATURE = row(
    "temperature", replace(POSITIVE, usual=(0.01, 5.0)), 1.0, NUM,
    "divisor of the logits for all log-probs",
)  # fmt: skip
"""setting of every kind that measures log-probs"""
BATCH = (
    row("batch.seq_len", replace(COUNT, auto=True), AUTO, NUM,
         "tokens per packed row; auto: the model's context"),
    row("batch.rows", replace(OPTIONAL_COUNT, auto=True), None, NUM,
         "rows per rank and microbatch; auto: as many as fit in memory and the batch can use"),
    row("batch.tokens", OPTIONAL_COUNT, None, NUM, "tokens per rank and microbatch; an alternative "
        "to `batch.rows`"),
    row("batch.pack", BOOL, True, NUM,
         "pack several sequences in a row; false: one sequence per row"),
    row("batch.accumulate", replace(COUNT, auto=True), AUTO, NUM,
         "microbatches per step; auto: as many as the batch needs"),
)  # fmt: skip
"""settings of every kind that trains"""


class Capability(StrEnum):
    """Capability of a service in a flow; passes and the runtime ask for these, not for kinds."""

    SAMPLES = "samples"  # samples completions, and receives the weights of a sync
    MEASURES = "measures"  # computes log-probs and values of existing tokens
    TRAINS = "trains"  # is trained if the flow steps it, else frozen
    JUDGES = "judges"  # grades completions, for a reward


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedService:
    """A declared service with its placement, from which its part of the job is made."""

    decl: Decl
    mesh: MeshPlan
    dtype: str
    rank: RankMemory | None
    rows: int = 0
    """rows of a microbatch, for services that train or measure"""
    seq_len: int = 0
    trained: bool
    """True if the flow trains it"""
    replays_routes: bool = False
    """True if it replays the experts of sampled tokens, or records them"""
    adapter_rank: int | None = None
    """rank of the LoRA adapter that it publishes or receives alone"""
    served_by: str | None = None
    """service whose engine serves it; settings and placement are then those of that service"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingCost:
    """Inputs of a sampler's cost model, besides its model and device."""

    shares_prompts: bool = False
    """True if the completions of a prompt read the prompt's keys and values once for all"""
    most: int = MAX_RUNNING
    """maximum number of completions decoded at once"""
    kv_itemsize: int
    """bytes of an element of the KV cache"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """Inputs of the cost model of a trained or frozen model, besides its model and device."""

    passes: float = 1.0
    """cost of the products of a microbatch, in forward passes"""
    attended: float = 1.0
    """cost of its attention, in forward passes"""
    fetched: float = 0.0
    """seconds per microbatch to copy weights and gradients, to fetch weights from the host's
    memory, or experts from other ranks"""
    updated: float = 0.0
    """seconds per update to copy weights and gradients, and on the host's CPU"""
    sent: int = 0
    """bytes per microbatch that a rank sends to experts on other ranks and back"""
    sent_s: float = 0.0
    """seconds of that, a part of `fetched`"""


TRAINED_PASSES = 3.0
"""cost of a forward and a backward pass, in forward passes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKind:
    """A kind of service: `service NAME : KIND(model) { ... }`. A kind that is not remote is a
    subclass that overrides `job` and `lowered`.

    schema    its settings, and the values that this version does not support (`support`)
    can       its capabilities: they decide which statements and checks apply
    needs     required settings: (capability that reads it, setting, reason)
    degrees   parallel degrees, whose product is the number of processes of a replica; `spread` is
              the one that takes the remaining processes
    even      dimensions of the model (fields of `Dims`) that `tp` must divide
    measure   prefix of the settings that define the distribution of its log-probs (`sampling.`)
    process   bytes of a process after its imports, without a model (measured)
    learning  prefixes of the settings that are read only if the flow trains the service
    remote    True if it runs elsewhere: its model is a string, and the plan places nothing
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
    """True if generated programs have a method of its name"""
    claim: str = ""
    """name of the setting with the fraction of a GPU's memory that it claims"""
    cpu_heads: tuple[int, ...] = ()
    """supported head dimensions of attention on a CPU; empty: any"""
    cpu_expert_width: int = 0
    """number that must divide an expert's width on a rank on a CPU, if weights are published to the
    service; 0: none"""
    records_routes: bool = False
    """True if its completions can carry the experts of each token"""
    adds_adapters: bool = False
    """True if it can add a published adapter to its base weights"""
    within: str = ""
    """a degree that adds no processes: it divides the processes of the other degrees"""

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
        """True if it can have several replicas that work independently."""
        return self.schema.setting("replicas") is not None

    # ---- mistakes

    def check(self, decl: Decl, *, trained: bool) -> list[Diagnostic]:
        """Return diagnostics about settings that contradict each other."""
        return []

    # ---- in a job

    def job(self) -> type[Service]:
        """Return the class of its services in a job."""
        raise NotImplementedError(f"{self.name}: a kind that is not remote has a class in a job")

    def lowered(self, placed: PlannedService) -> Service:
        """Make the job's form of a service."""
        raise NotImplementedError(f"{self.name}: a kind that is not remote is lowered")

    # ---- memory

    def rank(
        self, request: Request, mesh: MeshPlan, others: Mapping[str, RankMemory]
    ) -> RankMemory | None:
        """Return the memory of one rank in each phase of a step; None: only its process is counted.
        `others` are the ranks estimated before it."""
        return None

    def remedies(
        self, request: Request, mesh: MeshPlan, available: float, host: int
    ) -> Iterator[str]:
        """Yield changes with which a rank fits `available` bytes of its GPU, given `host` free
        bytes of host memory. Each has been checked by the memory model."""
        yield from ()

    # ---- cost

    def sampling(self, program: Program, decl: Decl) -> SamplingCost:
        """Return the cost of sampling with this service."""
        return SamplingCost(kv_itemsize=itemsize(program, decl))

    def training(
        self, request: Request, mesh: MeshPlan, dims: Dims, *, trained: bool
    ) -> TrainingCost:
        """Return the cost of a microbatch and of an update, of a trained or frozen model."""
        passes = TRAINED_PASSES if trained else 1.0
        return TrainingCost(passes=passes, attended=passes)

    def checkpoint_bytes(self, decl: Decl, dims: Dims) -> int:
        """Return the bytes of a checkpoint: weights and optimizer moments."""
        weight, moments, _ = PRECISIONS["f32"]
        return (weight + moments) * num_params(dims)
