"""The Job: everything a run needs, in one hermetic, hashed JSON document.

The compiler writes it (`forgedsl.lower`), `runtime/` reads it, nothing else passes between them.
It holds no absolute path and no .forge source. Files are named relative to the job: `inputs/...`
beside job.json (copied there at launch), or `forgedsl:...` for data that ships with the package.
Times are seconds, sizes bytes, unless a name says otherwise.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT_VERSION = "1.0"


class Spec(BaseModel):
    """Base of all parts: immutable, unknown fields are refused."""

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
    """A local file of rows."""

    kind: Literal["jsonl", "parquet"]
    path: str
    sha256: str


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


DataSource = Annotated[HfSource | FileSource | MixtureSource, Field(discriminator="kind")]
ModelSource = Annotated[HfSource | LocalModel | RandomModel, Field(discriminator="kind")]


class Arch(Spec):
    """A model family with a named size (`qwen3("1.7B")`) or explicit dimensions."""

    family: str
    size: str | None = None
    dims: dict[str, int | float | bool] = {}
    """layers, hidden, heads, kv_heads, head_dim, ffn, vocab, rope_theta, tied"""


class Model(Spec):
    source: ModelSource
    arch: Arch | None = None
    """None: read from the source's config.json"""
    dtype: Literal["f32", "bf16", "f16"]
    context: int | None
    tokenizer: ModelSource | None = None
    """None: the source's own"""
    chat_template: str | None = None


# ---- data


class Dataset(Spec):
    """Rows and the functions that turn a row into what the flow draws.

    `prompt`, `target`, `chat`, `chosen`, `rejected` name functions `f(row) -> value` of
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
    shuffle: int | None
    streaming: bool = False
    max_prompt_tokens: int | None = None
    on_long: Literal["drop", "truncate", "error"] = "drop"


# ---- services


class Place(Spec):
    """One host of one replica, and the GPUs that its processes use there, in rank order."""

    replica: int
    host: int
    gpus: tuple[int, ...]


class Mesh(Spec):
    """Processes of a service: `replicas` meshes of `hosts` x `procs` processes each."""

    name: str
    hosts: int = 1
    procs: int = 1
    gpus: int = 0
    """per process"""
    cpus: int | None = None
    device: Literal["cpu", "gpu"]
    replicas: int = 1
    places: tuple[Place, ...] = ()
    """where the plan puts the GPUs; empty for services without"""


class Optimizer(Spec):
    kind: Literal["adamw", "adam"] = "adamw"
    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    warmup: int = 0
    """steps"""
    decay: Literal["none", "linear", "cosine"] = "none"
    max_norm: float = 1.0
    on_nan: Literal["stop", "skip"] = "stop"


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


class TitanService(Spec):
    """A torchtitan model: trained if the flow steps it, else frozen (reference)."""

    kind: Literal["titan"] = "titan"
    model: str
    mesh: Mesh
    dtype: Literal["f32", "bf16", "f16"]
    temperature: float = 1.0
    parallel: TitanParallel = TitanParallel()
    optimizer: Optimizer | None = None
    """None: never stepped"""
    batch: BatchShape
    activation_checkpoint: Literal["none", "selective", "full"] = "none"
    offload: Literal["none"] = "none"
    logits: str = "auto"
    compile: bool = False


class Sampling(Spec):
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None


class VllmParallel(Spec):
    tp: int = 1
    pp: int = 1
    dp: int = 1


class VllmService(Spec):
    kind: Literal["vllm"] = "vllm"
    model: str
    mesh: Mesh
    dtype: Literal["f32", "bf16", "f16"]
    parallel: VllmParallel = VllmParallel()
    sampling: Sampling
    route: Literal["least_loaded", "round_robin", "sticky"] = "least_loaded"
    gpu_memory: float | None = None
    """fraction of the device; None: auto"""
    prefix_caching: bool = True
    cuda_graphs: bool = True
    max_running: int | None = None
    extra: dict[str, Any] = {}


Service = Annotated[TitanService | VllmService, Field(discriminator="kind")]


# ---- rewards and functions


class Reward(Spec):
    """One reward function, run in a pool of `procs` processes.

    kind "std": `function` names one of `forgedsl.runtime.rewards`, `args` its settings.
    kind "program": `function` names `f(rollout) -> float` in `Job.program`.
    kind "python": `function` in the file `path` (relative, with sha256); called with
    (prompt, response, target), or with (rollout, target) when `passes_rollout`.
    """

    kind: Literal["std", "program", "python"]
    function: str
    args: dict[str, Any] = {}
    path: str | None = None
    sha256: str | None = None
    passes_rollout: bool = False
    procs: int = 1
    timeout: float = 30.0
    retries: int = 1
    on_error: Literal["drop"] | float = "drop"
    memory: int | None = None
    cache: bool = False


class Rubric(Spec):
    """`function` of Job.program maps {reward name: float} to the score of a rollout."""

    function: str
    rewards: tuple[str, ...]
    on_truncated: float | None
    on_error: Literal["drop"] | float = "drop"


class LossField(Spec):
    name: str
    axes: tuple[str, ...]
    dtype: str
    diff: bool


class Loss(Spec):
    """The loss module generated from the declared expression (torch emission).

    `source` is the text of a Python module; see `forgedsl.runtime.losses` for its contract.
    `tree` is the typed expression in its text form, for other back ends.
    """

    name: str
    source: str
    tree: str
    fields: tuple[LossField, ...]
    reports: tuple[str, ...]


# ---- flow


class Input(Spec):
    """Reads edge `edge` (its attribute `attribute`) as argument `argument`."""

    argument: str
    edge: str
    attribute: str | None = None


class Node(Spec):
    """One node of the dataflow graph. `id` is stable and derived from content.

    op        target             inputs                    output (level)
    draw      dataset            -                         prompt (group); count = groups a step
    batches   dataset            -                         batch (batch)
    pairs     dataset            -                         pair (group)
    sample    generator service  prompt                    rollouts (rollout); n
    logprobs  titan service      rollout                   log-probs (rollout); at_step if trained
    score     rubric or reward   rollout, target           score (rollout)
    call      program function   any                       value (group): advantage
    mask      program function   any                       keep? (group): filter
    keep      -                  edge, mask                the edge, or the group is dropped
    replay    -                  rollout + named fields    batch (batch)
    step      titan service      batch                     new version; loss
    sync      titan service      -                         weights to `to`
    """

    id: str
    name: str
    op: Literal[
        "draw", "batches", "pairs", "sample", "logprobs", "score", "call", "mask", "keep",
        "replay", "step", "sync",
    ]  # fmt: skip
    target: str = ""
    inputs: tuple[Input, ...] = ()
    level: Literal["rollout", "group", "batch"]
    slots: int = 1
    """groups (or batches) this node works on at once"""
    count: int | None = None
    """draw: groups per optimizer step"""
    n: int | None = None
    """sample: completions per prompt"""
    loss: str | None = None
    to: str | None = None
    every: int = 1
    overlap: bool = True
    reset_prefix_cache: bool = True
    transport: Literal["auto", "shm", "ipc", "nccl", "rdma"] = "auto"
    timeout: float = 300.0
    at_step: bool = False
    """logprobs of the trained service: computed on the batch, under the weights before the step"""
    origin: str


class Schedule(Spec):
    """Staleness: at most `credits` groups are alive between being drawn and the weights trained on
    them being pulled; `window` groups may overtake. Worst age (credits + window - 2) // prompts."""

    mode: Literal["sync", "async"]
    steps: int | None
    epochs: float | None = None
    prompts: int
    """groups per optimizer step"""
    credits: int
    window: int = 1
    age_bound: int
    max_policy_age: int | None = None
    on_stale: Literal["drop", "error"] = "drop"
    starve_timeout: float | None = None


class Eval(Spec):
    dataset: str
    """name in Job.datasets (the compiler adds one per eval that overrides split or source)"""
    service: str
    """the generator"""
    score: str
    """reward or rubric"""
    every: int
    limit: int | None = None
    sampling: Sampling
    n: int = 1


class Checkpoint(Spec):
    every: int | None = None
    keep: int = 2
    export: str | None = None
    """folder (relative to the run folder) for a Hugging Face export at the end"""


class Wandb(Spec):
    project: str
    entity: str | None = None
    mode: str | None = None


class Logging(Spec):
    console: bool = True
    jsonl: bool = True
    tensorboard: bool = True
    wandb: Wandb | None = None
    samples: int = 8


class Launcher(Spec):
    kind: Literal["local", "process", "ssh", "slurm", "kubernetes"] = "local"
    args: dict[str, Any] = {}


class Job(Spec):
    """A run. `program` is the text of the generated Python module with the pure functions of the
    job (dataset rows, rewards, rubrics, advantages, filters); it imports only the standard library
    and `forgedsl.runtime.program`. `origins` maps declaration names to "file.forge:line:column"."""

    format_version: str = FORMAT_VERSION
    content_hash: str = ""
    compiler: str
    """forgedsl version"""
    name: str
    seed: int
    profile: str | None
    summary: tuple[str, ...]
    """for people: what this job is, a few lines"""
    params: dict[str, Any]
    models: dict[str, Model]
    datasets: dict[str, Dataset]
    services: dict[str, Service]
    rewards: dict[str, Reward]
    rubrics: dict[str, Rubric]
    losses: dict[str, Loss]
    program: str
    nodes: tuple[Node, ...]
    schedule: Schedule
    evals: dict[str, Eval]
    checkpoint: Checkpoint
    logging: Logging
    launcher: Launcher
    colocate: tuple[tuple[str, ...], ...] = ()
    """groups of services that share GPUs"""
    origins: dict[str, str]
    topology: str
    """the graph as text, for the report and the console"""

    def sealed(self) -> Job:
        """The same job with `content_hash` computed (sha256 of the canonical JSON without it)."""
        return self.model_copy(update={"content_hash": self.digest()})

    def digest(self) -> str:
        body = self.model_dump(mode="json", exclude={"content_hash"})
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


MixtureSource.model_rebuild()
