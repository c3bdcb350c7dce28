"""Classes of a job besides its flow: sources, models, datasets, and base classes of services.

`forgedsl.lower.job` re-exports everything here; import it from there.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Spec(BaseModel):
    """Base class of all parts of a job: immutable, refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# ---- sources


class HfSource(Spec):
    """A model or dataset of the Hugging Face hub."""

    kind: Literal["hf"] = "hf"
    id: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None


class FileSource(Spec):
    """A local file of rows, or (disk) a folder."""

    kind: Literal["jsonl", "parquet", "csv", "json", "disk"]
    path: str
    sha256: str


class ReasoningGymSource(Spec):
    """Problems that a task of reasoning-gym makes: row i is made with the random seed `seed` + i.
    `options` are fields of the task's configuration; `packages` has the version of the package when
    the job was compiled, if it was installed."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    task: str
    size: int
    seed: int
    options: dict[str, Any] = Field(default_factory=dict, exclude_if=operator.not_)
    packages: dict[str, str] = Field(default_factory=dict, exclude_if=operator.not_)


class MixtureSource(Spec):
    """Rows drawn from several sources with the given weights."""

    kind: Literal["mixture"] = "mixture"
    sources: tuple[DataSource, ...]
    weights: tuple[float, ...]


class LocalModel(Spec):
    """A folder in Hugging Face layout (config.json, *.safetensors, tokenizer)."""

    kind: Literal["local"] = "local"
    path: str
    sha256: str


class RandomModel(Spec):
    """Random weights."""

    kind: Literal["random"] = "random"
    seed: int


DataSource = Annotated[
    HfSource | FileSource | ReasoningGymSource | MixtureSource, Field(discriminator="kind")
]
ModelSource = Annotated[HfSource | LocalModel | RandomModel, Field(discriminator="kind")]


class Arch(Spec):
    """A model family with a named size (`qwen3("1.7B")`) or explicit dimensions."""

    family: str
    size: str | None = None
    dims: dict[str, int | float | bool] = {}
    """layers, hidden, heads, kv_heads, head_dim, ffn, vocab, rope_theta, tied"""


TOOL_CALLS = r"^(hermes|qwen3_coder|llama3_json|mistral|deepseek_v3|vllm:[\w-]+)$"


class Model(Spec):
    source: ModelSource
    adapter: ModelSource | None = Field(default=None, exclude_if=operator.not_)
    """LoRA adapter in the layout of PEFT, merged into the weights"""
    arch: Arch | None = None
    """None: read from the source's config.json"""
    dtype: Literal["f32", "bf16", "f16"]
    context: int | None
    tokenizer: ModelSource | None = None
    """None: the source's own"""
    chat_template: str | None = None
    tool_calls: str | None = Field(default=None, pattern=TOOL_CALLS, exclude_if=operator.not_)
    """form in which it writes tool calls, or `vllm:NAME`: a tool parser of vLLM; None: the form of
    its chat template"""


# ---- data


class Dataset(Spec):
    """Rows, and the functions that turn a row into the items that the flow draws.

    `prompt`, `target`, `chat`, `chosen`, `rejected`, `level` name functions `f(row) -> value` of
    `Job.program`. A prompt is a list of chat messages `{"role", "content"}` or a string.
    """

    source: DataSource
    tokenizer: str
    """name of the model whose tokenizer and chat template are used"""
    prompt: str | None = None
    target: str | None = None
    chat: str | None = None
    learn: Literal["assistant_turns", "last_turn", "all"] | None = None
    chosen: str | None = None
    rejected: str | None = None
    level: str | None = None
    """name of the function that returns a row's level; a weighted draw averages scores per level.
    None: each row is its own level"""
    shuffle: int | None
    streaming: bool = False
    max_prompt_tokens: int | None = None
    """the declared value, else the context or the trainer's row (the smaller one) minus the maximum
    completion length"""
    on_long: Literal["drop", "truncate", "error"] = "drop"
    max_bad_rows: float = 0.05


# ---- services


class Place(Spec):
    """One host of one replica, and the GPUs that its processes use there, in rank order."""

    replica: int
    host: int
    gpus: tuple[int, ...]


class Mesh(Spec):
    """Processes of a service: `replicas` replicas of `hosts` x `procs` processes each."""

    name: str
    hosts: int = 1
    procs: int = 1
    gpus: int = 0
    """per process"""
    cpus: int | None = None
    device: Literal["cpu", "gpu"]
    replicas: int = 1
    places: tuple[Place, ...] = ()
    """placement; empty for services without GPUs on the first host"""

    @property
    def placed_gpus(self) -> frozenset[tuple[int, int]]:
        """GPUs of all replicas, as (host, GPU)."""
        return frozenset((place.host, gpu) for place in self.places for gpu in place.gpus)


class Optimizer(Spec):
    kind: Literal["adamw", "adam", "muon", "sgd"] = "adamw"
    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.0
    """of muon and sgd"""
    nesterov: bool = False
    ns_steps: int = 5
    """of muon"""
    adjust_lr: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    warmup: int = 0
    """steps"""
    decay: Literal["none", "linear", "cosine"] = "none"
    max_norm: float = 1.0
    on_nan: Literal["stop", "skip"] = "stop"
    precision: Literal["f32", "bf16_moments", "bf16"] = "f32"
    """precision of a weight between steps"""


class Lora(Spec):
    """Adapters that are trained instead of the weights (2106.09685)."""

    rank: int
    alpha: float


class BatchShape(Spec):
    """One microbatch of one rank: `rows` packed rows of `seq_len` tokens."""

    seq_len: int
    rows: int
    pack: bool = True
    accumulate: int | None = None
    """None: as many microbatches as the data needs"""


class TitanParallel(Spec):
    dp_shard: int = 1
    dp_replicate: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1


class Service(Spec):
    """Base class of services; `kind` is the name of its kind."""

    kind: str
    model: str
    mesh: Mesh
    dtype: Literal["f32", "bf16", "f16"]

    @property
    def trained(self) -> bool:
        """True if the flow trains this service."""
        return False

    @property
    def on_nan(self) -> Literal["stop", "skip"]:
        """Action if the loss or the gradient of a step is not finite."""
        return "stop"


class Trainer(Service):
    """A service that measures log-probs with a model on one mesh of ranks. It is trained if the
    flow has a step for it, else frozen (a reference)."""

    temperature: float = 1.0
    parallel: TitanParallel = TitanParallel()
    optimizer: Optimizer | None = None
    """None: never stepped"""
    lora: Lora | None = None
    """None: the weights themselves are trained"""
    value_head: bool = False
    """it has a value head, which gives a number for each token"""
    router_replay: bool = False
    """routers choose the experts that the sampler chose"""
    batch: BatchShape
    served_by: str | None = Field(default=None, exclude_if=operator.not_)
    """trained service that computes its log-probs, with adapters left out; its `mesh` is then the
    mesh of that service"""

    @property
    def trained(self) -> bool:
        return self.optimizer is not None

    @property
    def on_nan(self) -> Literal["stop", "skip"]:
        return "stop" if self.optimizer is None else self.optimizer.on_nan

    @property
    def learning_rate(self) -> float:
        """0 if it is frozen."""
        return 0.0 if self.optimizer is None else self.optimizer.lr

    @property
    def step_rows(self) -> int:
        """Rows of a whole optimizer step, over all ranks."""
        ranks = self.parallel.dp_shard * self.parallel.dp_replicate
        return self.batch.rows * ranks * (self.batch.accumulate or 1)


class Sampling(Spec):
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()


class VllmParallel(Spec):
    tp: int = 1
    pp: int = 1
    dp: int = 1


class Sampler(Service):
    """A service that samples completions and receives weights by a sync."""

    parallel: VllmParallel = VllmParallel()
    sampling: Sampling
    route: Literal["least_loaded", "round_robin", "sticky"] = "least_loaded"
    served_by: str | None = Field(default=None, exclude_if=operator.not_)
    """service whose engine answers its requests; its `mesh` is then the mesh of that service"""

    @property
    def hosts(self) -> int:
        """Number of hosts of an engine."""
        return self.mesh.hosts

    @property
    def precision(self) -> str:
        """The dtype that limits the precision of its log-probs."""
        return self.dtype


MixtureSource.model_rebuild()
