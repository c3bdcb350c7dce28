"""The Job: everything a run needs, in one hermetic, hashed JSON document.

The compiler writes it (`forgedsl.lower`) and `runtime/` reads it; they share nothing else. It has
no absolute paths and no .forge source. Files are named relative to the job: `inputs/...` beside
job.json (copied there at launch), or `forgedsl:...` for data that ships with the package. Times are
in seconds, sizes in bytes, unless a name says otherwise.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

from forgedsl import extensions
from forgedsl.errors import LaunchError
from forgedsl.job.parts import (
    Arch,
    BatchShape,
    Dataset,
    DataSource,
    FileSource,
    HfSource,
    LocalModel,
    Lora,
    Mesh,
    MixtureSource,
    Model,
    ModelSource,
    Optimizer,
    Place,
    RandomModel,
    ReasoningGymSource,
    Sampler,
    Sampling,
    Service,
    Spec,
    TitanParallel,
    Trainer,
    VllmParallel,
)
from forgedsl.operations.registry import operation
from forgedsl.services.registry import kinds
from forgedsl.services.titan.job import TitanService
from forgedsl.services.vllm.job import VllmService
from forgedsl.types.flow import Role

__all__ = [
    "FORMAT_VERSION", "Arch", "BatchShape", "Buffer", "Checkpoint", "DataSource", "Dataset",
    "Environment", "Eval", "FileSource", "HfSource", "Input", "Job", "Launcher", "LocalModel",
    "Logging", "Lora", "Loss", "LossField", "Mesh", "MixtureSource", "Mlflow", "Model",
    "ModelSource", "Node", "Optimizer", "Place", "RandomModel", "ReasoningGymSource", "Reward",
    "Rubric", "Sampler", "Sampling", "Schedule", "Service", "Spec", "TitanParallel", "TitanService",
    "Trackio", "Trainer", "VllmParallel", "VllmService", "Wandb", "service_of",
]  # fmt: skip

FORMAT_VERSION = "1.0"


# ---- services


def service_of(value: Any) -> Service:
    """Make the service that a mapping describes, by its `kind`. Raises ValueError."""
    if isinstance(value, Service):
        return value
    for kind in kinds():
        if kind.name == value.get("kind") and not kind.remote:
            return kind.job().model_validate(value)
    raise ValueError(f"no service is of the kind {value.get('kind')}")


if TYPE_CHECKING:
    AnyService = Service
else:
    AnyService = Annotated[SerializeAsAny[Service], BeforeValidator(service_of)]


# ---- rewards and functions


class Module(Spec):
    """File of the job that a Python file of the job imports."""

    path: str
    sha256: str


class Reward(Spec):
    """One reward function, run in a pool of `procs` processes.

    kind "std": `function` is a name in `forgedsl_runtime.rewards`; `args` are its settings.

    kind "program": `function` is the name of `f(rollout) -> float` in `Job.program`.

    kind "python": `function` is a function in the file `path` (relative, with sha256), or a class,
    of which an object is made with `args`. `inputs` maps each parameter to its argument: prompt,
    messages, response, target, rollout, row, or `column NAME`. With `lists` every argument is a
    list of length one (TRL).

    kind "judge": `service` grades a prompt; `inputs` are its placeholders, `args` those of `score`.

    kind "endpoint": the model at `args["url"]` grades the prompt.

    kind "scorer": the score is the value head's output of `service` at the last token.
    """

    kind: Literal["std", "program", "python", "judge", "endpoint", "scorer"]
    function: str
    args: dict[str, Any] = Field(default_factory=dict)
    service: str | None = None
    path: str | None = None
    sha256: str | None = None
    modules: dict[str, Module] = Field(default_factory=dict, exclude_if=operator.not_)
    """by name: modules beside the file that it imports"""
    packages: dict[str, str] = Field(default_factory=dict, exclude_if=operator.not_)
    """packages that its files import, with their versions when the job was compiled"""
    files: dict[str, str] = Field(default_factory=dict, exclude_if=operator.not_)
    """by name in the job: sha256 of the files and folders that it reads"""
    inputs: dict[str, str] = Field(default_factory=dict)
    positional: tuple[str, ...] = ()
    """positional parameters, in order"""
    lists: bool = False
    makes: str = "call"
    """what the name is: a function ("call"), a callable "object", or the "class" of one
    """
    procs: int = 1
    concurrency: int | None = None
    """concurrent calls per process, of an asynchronous function or a judge"""
    timeout: float = 30.0
    retries: int = 1
    on_error: Literal["drop"] | float = "drop"
    max_failed: float = 0.25
    memory: int | None = None
    cache: bool = False
    monitor: bool = False

    @property
    def is_pure(self) -> bool:
        """True if it only computes. Such rewards need little time and share one pool."""
        return self.kind in ("std", "program")

    @property
    def is_alone(self) -> bool:
        """True if a run gives it processes of its own."""
        return self.kind in ("python", "endpoint")

    @property
    def concurrent_calls(self) -> int:
        """Number of calls that its pool handles concurrently."""
        return self.procs * (self.concurrency or 1)


class AgentProgram(Spec):
    """Command of an agent that is a program, and how it is started. Words of the `command` that are
    keys of `Environment.scripts` are files of the job. `variables` are NAME=VALUE, or NAME alone,
    which keeps the value of the run. `reward` says where the program leaves its reward. At most
    `concurrency` of them run at a time in one process of the pool."""

    command: tuple[str, ...]
    variables: tuple[str, ...] = ()
    stdin: bool = False
    reward: Literal["last_line", "exit", "file", "none"] = "last_line"
    concurrency: int | None = None


class Environment(Spec):
    """A multi-turn environment: the class `type_name` in the file `path`, instantiated with `args`.

    `tools` are the names of its tools, `parts` those of its reward parts. A trajectory whose
    environment failed twice gets the score `on_error`, or is dropped. `scripts` are the Python
    files in the command of its MCP server, each with its sha256. An `agent` sends its own requests
    to the policy; it has no tool_timeout and no max_observation. An agent that is a `program` has
    no class: `path` and `sha256` are empty. An environment of `gymnasium` is the class of
    forgedsl.gymnasium; `path` is the file that registers it, or empty.
    """

    type_name: str
    args: dict[str, Any] = Field(default_factory=dict)
    path: str
    sha256: str
    modules: dict[str, Module] = Field(default_factory=dict, exclude_if=operator.not_)
    """by name: modules beside the file that it imports"""
    tools: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    scripts: dict[str, str] = Field(default_factory=dict)
    procs: int = 1
    tool_timeout: float = 10.0
    deadline: float | None = None
    max_observation: int = 256
    history: Literal["append", "template"] = "append"
    on_error: Literal["drop"] | float = "drop"
    agent: bool = Field(default=False, exclude_if=operator.not_)
    program: AgentProgram | None = Field(default=None, exclude_if=operator.not_)
    gymnasium: bool = Field(default=False, exclude_if=operator.not_)
    packages: dict[str, str] = Field(default_factory=dict, exclude_if=operator.not_)
    """packages that its files import, with their versions when the job was compiled"""


class Buffer(Spec):
    """Replay buffer: the newest `groups` groups whose samples are at most `max_age` steps old."""

    groups: int
    max_age: int


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
    """The modules generated from the declared expression; see `forgedsl_runtime.losses`.

    `source` is the text of a torch module, `kernels` of a Triton module; `tree` is the typed
    expression that both come from, in its text form. `kinks` are the places where its gradient
    jumps, as `min file.forge:35:10`. For a loss in Python, `source` contains the text of its file,
    `kernels` is empty, and `python` describes the class.
    """

    name: str
    source: str
    tree: str
    fields: tuple[LossField, ...]
    reports: tuple[str, ...]
    kernels: str = ""
    kinks: tuple[str, ...] = ()
    python: str = ""

    @property
    def paired(self) -> bool:
        """True if it compares the two answers of a pair."""
        return any("P" in field.axes for field in self.fields)


# ---- flow


class Input(Spec):
    """An input of a node: reads edge `edge` (its attribute `attribute`) as argument `argument`."""

    argument: str
    edge: str
    attribute: str | None = None


class Node(Spec):
    """One node of the dataflow graph. `id` is stable and derived from content.

    op        target             inputs                    output (level)
    draw      dataset            -                         prompt (group); count = groups a step
    batches   dataset            -                         batch (batch)
    pairs     dataset            -                         pair (group)
    sample    generator service  prompt                    rollouts (rollout); n; env: a play
    logprobs  titan service      rollout                   log-probs (rollout); at_step if trained;
                                                           with `values` what its value head says
    score     rubric or reward   rollout, target           score (rollout)
    call      program function   any                       value (group): advantage
    mask      program function   any                       keep? (group): filter
    keep      -                  edge, mask                the edge, or the group is dropped
    put       buffer             rollout, keep?, fields    groups of this step, for later steps
    recall    buffer             -                         rollouts (rollout); count = groups a step
    replay    -                  rollout + named fields    batch (batch)
    step      titan service      batch, batch_2, ...       new version; loss, epochs, minibatches
    sync      titan service      -                         weights to `to`
    """

    id: str
    name: str
    model_config = ConfigDict(extra="allow", frozen=True)

    op: str
    target: str = ""
    inputs: tuple[Input, ...] = ()
    level: Literal["rollout", "group", "batch"]
    slots: int = 1
    """groups (or batches) that the node works on at once"""
    count: int | None = None
    """draw, recall: groups per optimizer step"""
    weight: str | None = None
    """draw: name of the function that weights a row by earlier scores of its level"""
    observe: str | None = None
    """draw: the score that the weight depends on"""
    compares: bool = False
    """score: a judge compares the completions of a group, so scoring waits for all of them"""
    n: int | None = None
    """sample: completions per prompt"""
    env: str | None = None
    """sample: the environment that the completions are played in"""
    max_turns: int | None = None
    longest: int | None = None
    """maximum tokens of a trajectory, prompt included; limited by the context and the trainer's
    row"""
    loss: str | None = None
    beside: tuple[str, ...] = ()
    """step: losses of the second and later batches; "" if a batch is merged with the one before"""
    epochs: int = 1
    """step: passes over the batch"""
    minibatches: int = 1
    """step: updates in each pass"""
    to: str | None = None
    every: int = 1
    overlap: bool = True
    on_swap: Literal["recompute", "keep"] = "recompute"
    weights: Literal["merged", "adapter"] = Field(default="merged", exclude_if="merged".__eq__)
    """sync: all weights with the adapter merged into them, or the adapter alone"""
    transport: str = "shm"
    timeout: float = 300.0
    at_step: bool = False
    """logprobs of the trained service: computed on the batch, under the weights before the step"""
    values: bool = False
    """logprobs: return the values of the value head instead of log-probs"""
    origin: str

    @model_validator(mode="after")
    def _of_its_operation(self) -> Self:
        unknown = (self.model_extra or {}).keys() - operation(self.op).extra
        if unknown:
            raise ValueError(f"a node of `{self.op}` has no field {', '.join(sorted(unknown))}")
        return self

    @property
    def roles(self) -> frozenset[Role]:
        """The roles of the node in the flow."""
        return operation(self.op).roles

    @property
    def terms(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The losses of a step, each with the edges that carry its batches."""
        found: list[tuple[str, list[str]]] = []
        for loss, read in zip((self.loss or "", *self.beside), self.inputs, strict=True):
            if loss or not found:
                found.append((loss, []))
            found[-1][1].append(read.edge)
        return tuple((loss, tuple(edges)) for loss, edges in found)


class Schedule(Spec):
    """Schedule and bound of staleness. At most `credits` groups are alive, from their draw until
    the generator has pulled the weights trained on them. A group may be overtaken by `window - 1`
    groups. Worst age: (credits + window - 2) // prompts steps."""

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
    restarts: int = 0


class Eval(Spec):
    dataset: str
    """name in Job.datasets (the compiler adds one per eval that overrides split or source)"""
    service: str
    """the generator; of a loss, the trainer"""
    score: str | None = None
    """reward or rubric"""
    loss: str | None = None
    """a loss of `Job.losses`, measured on the dataset's chats or pairs without sampling"""
    every: int
    limit: int | None = None
    sampling: Sampling | None = None
    n: int = 1
    env: str | None = None
    max_turns: int | None = None
    longest: int | None = None


class Checkpoint(Spec):
    every: int | None = None
    """optimizer steps"""
    every_s: float | None = None
    keep: int = 2
    grace_s: int = 120
    """maximum seconds from SIGTERM to the end of the run"""
    export: str | None = None
    """folder (relative to the run folder) for a Hugging Face export at the end"""


class Wandb(Spec):
    project: str
    entity: str | None = None
    mode: str | None = None


class Mlflow(Spec):
    experiment: str
    uri: str | None = None


class Trackio(Spec):
    project: str
    space: str | None = None


class Logging(Spec):
    console: bool = True
    jsonl: bool = True
    tensorboard: bool = True
    prometheus: int | None = None
    """port of the Prometheus exporter"""
    wandb: Wandb | None = None
    mlflow: Mlflow | None = Field(default=None, exclude_if=operator.not_)
    trackio: Trackio | None = Field(default=None, exclude_if=operator.not_)
    samples: int = 8
    record: int | Literal["all"] | None = Field(default=20, exclude_if=lambda steps: steps == 20)
    """number of last steps whose completions are recorded"""
    record_bytes: int | None = Field(default=2**30, exclude_if=lambda size: size == 2**30)
    """maximum bytes of the recorded steps"""


class Proofs(Spec):
    """Checks that a run makes of itself. `off` has those that it leaves out, each with a reason."""

    off: dict[str, str] = Field(default_factory=dict, exclude_if=operator.not_)


class Launcher(Spec):
    kind: str = "local"
    args: dict[str, Any] = Field(default_factory=dict)
    pools: int = 0
    """index of the host of rewards and environments"""
    cpus: int | None = None
    memory: int | None = None
    """bytes of a host's memory, as `cluster` declares"""


class Job(Spec):
    """A run. `program` is the text of the generated Python module with the pure functions of the
    job (dataset rows, rewards, rubrics, advantages, filters); it imports only the standard library
    and `forgedsl_runtime.program`. `origins` maps declaration names to "file.forge:line:column"."""

    format_version: str = FORMAT_VERSION
    content_hash: str = ""
    compiler: str
    """version of forgedsl"""
    name: str
    seed: int
    profile: str | None
    summary: tuple[str, ...]
    """description of the job for people, a few lines"""
    params: dict[str, Any]
    models: dict[str, Model]
    datasets: dict[str, Dataset]
    services: dict[str, AnyService]
    rewards: dict[str, Reward]
    rubrics: dict[str, Rubric]
    environments: dict[str, Environment] = Field(default_factory=dict)
    buffers: dict[str, Buffer] = Field(default_factory=dict)
    losses: dict[str, Loss]
    program: str
    nodes: tuple[Node, ...]
    schedule: Schedule
    evals: dict[str, Eval]
    checkpoint: Checkpoint
    logging: Logging
    proofs: Proofs = Field(default_factory=Proofs, exclude_if=lambda proofs: not proofs.off)
    launcher: Launcher
    colocate: tuple[tuple[str, ...], ...] = ()
    """groups of services that share GPUs"""
    chosen: dict[str, str] = Field(default_factory=dict)
    """values that the plan chose for `auto`, as overrides: for readers, `forge.lock`, and a resume
    with the file; the services already contain them"""
    origins: dict[str, str]
    topology: str
    """the graph as text, for report and console"""
    extensions: dict[str, str] = Field(default_factory=dict, exclude_if=operator.not_)
    """path -> sha256 of the files of extensions"""

    @property
    def samplers(self) -> dict[str, Sampler]:
        """The services that sample completions."""
        return {n: each for n, each in self.services.items() if isinstance(each, Sampler)}

    @property
    def trainers(self) -> dict[str, Trainer]:
        """The services that measure log-probs, trained and frozen."""
        return {n: each for n, each in self.services.items() if isinstance(each, Trainer)}

    @property
    def with_processes(self) -> dict[str, Service]:
        """The services with processes of their own: all but tenants."""
        return {n: s for n, s in self.services.items() if getattr(s, "served_by", None) is None}

    def shares_gpu(self, name: str) -> bool:
        """Return True if another service has one of the GPUs of service `name`."""
        mine = self.services[name].mesh.placed_gpus
        others = (each for other, each in self.with_processes.items() if other != name)
        return any(mine & each.mesh.placed_gpus for each in others)

    def tenants(self, name: str) -> tuple[str, ...]:
        """Return the services that service `name` serves besides itself."""
        return tuple(
            n for n, each in self.services.items() if getattr(each, "served_by", None) == name
        )

    def own_adapter(self, tenant: str) -> ModelSource | None:
        """Return the adapter of a tenant's model; None if it answers with the base of the service
        that serves it."""
        service = self.services[tenant]
        own = self.models[service.model].adapter
        engine = str(getattr(service, "served_by", None))
        base = self.models[self.services[engine].model].adapter
        return None if own == base else own

    @property
    def trained_service(self) -> str:
        """The name of the service that the flow trains; "" if it trains none."""
        return next((node.target for node in self.nodes if Role.UPDATES in node.roles), "")

    def sealed(self) -> Job:
        """Return the job with its `content_hash` (sha256 of the canonical JSON without it)."""
        return self.model_copy(update={"content_hash": self.digest()})

    def digest(self) -> str:
        body = self.model_dump(mode="json", exclude={"content_hash"})
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def extension_names(paths: Iterable[str]) -> list[str]:
    """The names of extensions, from the paths of their files."""
    return list(dict.fromkeys(Path(path).parts[2] for path in paths))


def use_extensions(value: Mapping[str, Any], folder: Path) -> None:
    """Install the extensions of a job, which lie in its folder.

    Raises:
        LaunchError: one cannot be imported.
    """
    try:
        extensions.install(extension_names(value.get("extensions", ())), folder / extensions.FOLDER)
    except extensions.ExtensionError as error:
        raise LaunchError(str(error)) from error


OLD_RUNTIME = "forgedsl.runtime"
"""package of the runtime until 2026-11-27; it is `forgedsl_runtime` now"""


def read_job(run_dir: Path) -> Job:
    """Read the job of a run folder.

    Raises:
        LaunchError: it was written by a version of ForgeDSL with other settings.
    """
    path = run_dir / "job.json"
    text = path.read_text(encoding="utf-8")
    if '"extensions"' in text:
        use_extensions(json.loads(text), run_dir)
    try:
        job = Job.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _other_version(path, f"{where}: {first['msg']}") from error
    programs = (job.program, *(loss.source for loss in job.losses.values()))
    if any(f"from {OLD_RUNTIME}" in each for each in programs):
        raise _other_version(path, f"its program imports {OLD_RUNTIME}")
    return job


def _other_version(path: Path, why: str) -> LaunchError:
    return LaunchError(
        f"{path} is not a job of this version of ForgeDSL ({why}); use the version that wrote it "
        "(forge.lock names it)"
    )
