"""Program: collects declarations and nodes and makes the `Job` from them.

Nodes of a dataset or a service are added by methods of their handles (handles.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from forgedsl import extensions as outside
from forgedsl.lower import job as spec
from forgedsl.lower.paths import digest
from forgedsl.shipped import locate
from forgedsl.version import VERSION
from forgedsl_runtime.api.handles import (
    Buffer,
    Dataset,
    Edge,
    Env,
    Generator,
    Loss,
    Model,
    Scorer,
    Titan,
)
from forgedsl_runtime.tracebacks import install_places


class Program:
    """Collects declarations and nodes; `job()` makes the job. `folder` is the program's folder:
    file names are relative to it. `functions` is the module with the pure functions of the job."""

    def __init__(
        self,
        name: str,
        *,
        folder: Path,
        functions: ModuleType,
        seed: int = 0,
        profile: str | None = None,
        summary: Sequence[str] = (),
        topology: str = "",
        compiler: str = VERSION,
        extensions: Sequence[str] = (),
    ) -> None:
        install_places()
        outside.install(extensions, folder / outside.FOLDER)
        self.folder = folder
        self._functions = functions
        added = outside.files() if extensions else {}
        self._head: dict[str, Any] = {
            "extensions": {name: digest(path) for name, path in added.items()},
            "name": name, "seed": seed, "profile": profile, "compiler": compiler,
            "summary": tuple(summary), "topology": topology,
        }  # fmt: skip
        self._parts: dict[str, Any] = {
            part: {} for part in ("params", "models", "datasets", "services", "rewards", "rubrics",
                                  "environments", "buffers", "losses", "evals", "origins")
        }  # fmt: skip
        self._nodes: list[spec.Node] = []
        self._rest: dict[str, Any] = {
            "checkpoint": spec.Checkpoint(),
            "logging": spec.Logging(),
            "launcher": spec.Launcher(),
        }

    # ---- declarations

    def param(self, name: str, value: Any, *, at: str = "") -> Any:
        """Declare a parameter and return its value."""
        self._declare("params", name, value, at)
        return value

    def model(self, name: str, source: spec.ModelSource, *, at: str = "", **given: Any) -> Model:
        """Declare a model: `adapter`, `arch`, `dtype`, `context`, `tokenizer`, `chat_template`."""
        hashed = {
            key: self._hashed(given.pop(key))
            for key in ("adapter", "tokenizer")
            if given.get(key) is not None
        }
        model = spec.Model(source=self._hashed(source), **hashed, **given)
        self._declare("models", name, model, at)
        return Model(name)

    def dataset(
        self, name: str, source: spec.DataSource, *, tokenizer: Model, at: str = "", **given: Any
    ) -> Dataset:
        """Declare a dataset: a source, and functions that turn a row into an item."""
        columns: dict[str, Any] = {"shuffle": None}
        columns |= {k: self.function(v) if callable(v) else v for k, v in given.items()}
        dataset = spec.Dataset(source=self._hashed(source), tokenizer=tokenizer.name, **columns)
        self._declare("datasets", name, dataset, at)
        return Dataset(self, name)

    def titan(self, name: str, model: Model, *, at: str = "", **given: Any) -> Titan:
        """Declare a torchtitan service: trained if it has an optimizer, else frozen."""
        service = spec.TitanService(model=model.name, **given)
        self._declare("services", name, service, at)
        return Titan(self, name, trained=service.optimizer is not None)

    def vllm(self, name: str, model: Model, *, at: str = "", **given: Any) -> Generator:
        """Declare a vLLM service."""
        self._declare("services", name, spec.VllmService(model=model.name, **given), at)
        return Generator(self, name)

    def service(
        self, name: str, kind: str, model: Model, *, at: str = "", **given: Any
    ) -> Titan | Generator:
        """Declare a service whose kind is defined by an extension."""
        service = spec.service_of({"kind": kind, "model": model.name} | given)
        self._declare("services", name, service, at)
        if isinstance(service, spec.Sampler):
            return Generator(self, name)
        return Titan(self, name, trained=service.trained)

    def colocate(self, *services: Titan | Generator) -> None:
        """Let these services share their GPUs."""
        shared = self._rest.get("colocate", ())
        self._rest["colocate"] = (*shared, tuple(service.name for service in services))

    def environment(
        self, name: str, type_name: str, *, file: str, at: str = "", **given: Any
    ) -> Env:
        """Declare an environment by the name of its class in a Python file. For an agent that is a
        program, or an environment of gymnasium, `file` may be ""."""
        sha256 = digest(self._file(file)) if file else ""
        played = spec.Environment(type_name=type_name, path=file, sha256=sha256, **given)
        self._declare("environments", name, played, at)
        return Env(name)

    def buffer(self, name: str, *, groups: int, max_age: int, at: str = "") -> Buffer:
        """Declare a replay buffer of groups for later steps."""
        self._declare("buffers", name, spec.Buffer(groups=groups, max_age=max_age), at)
        return Buffer(self, name)

    def reward(
        self, name: str, function: str | Callable[..., Any], *, at: str = "", **given: Any
    ) -> Scorer:
        """Declare a reward: a function of the program, the name of a standard reward, or with
        `file` a function of that Python file. The latter is called with (prompt, response, target),
        unless `inputs` names the input of each parameter. For a judge, pass its `kind`, such as
        "judge" or "endpoint"."""
        file = given.pop("file", None)
        if callable(function):
            reward = spec.Reward(kind="program", function=self.function(function), **given)
        elif file is not None:
            sha256 = digest(self._file(file))
            if "inputs" not in given:
                given.setdefault("positional", ("prompt", "response", "target"))
            reward = spec.Reward(
                kind="python", function=function, path=file, sha256=sha256, **given
            )
        else:
            reward = spec.Reward(**({"kind": "std"} | given), function=function)
        self._declare("rewards", name, reward, at)
        return Scorer(name)

    def rubric(
        self,
        name: str,
        function: Callable[..., Any],
        rewards: Sequence[Scorer],
        *,
        at: str = "",
        **given: Any,
    ) -> Scorer:
        """Declare a rubric, which makes one score from several rewards."""
        rubric = spec.Rubric(
            function=self.function(function),
            rewards=tuple(reward.name for reward in rewards),
            **({"on_truncated": None} | given),
        )
        self._declare("rubrics", name, rubric, at)
        return Scorer(name)

    def loss(
        self, name: str, stem: str, /, *, reads: Mapping[str, str], at: str = "", **given: Any
    ) -> Loss:
        """Declare a loss from its generated modules: STEM.py (torch), STEM_kernels.py (Triton),
        STEM.tree. `reads` are its fields, such as `{"logprob": "diff [B, T] f32"}`."""
        loss = spec.Loss(
            **({"name": name} | given),
            source=self._text(f"{stem}.py"),
            kernels=self._text(f"{stem}_kernels.py"),
            tree=self._text(f"{stem}.tree"),
            fields=tuple(_field(field, text) for field, text in reads.items()),
        )
        self._declare("losses", name, loss, at)
        return Loss(name)

    def eval(
        self,
        name: str,
        dataset: Dataset,
        service: Generator | Titan,
        score: Scorer | None = None,
        *,
        loss: Loss | None = None,
        **given: Any,
    ) -> None:
        """Declare an eval on held-out rows: they are sampled and scored, or their loss is
        computed."""
        at = given.pop("at", "")
        found = spec.Eval(
            dataset=dataset.name, service=service.name, score=None if score is None else score.name,
            loss=None if loss is None else loss.name, **given,
        )  # fmt: skip
        self._declare("evals", name, found, at)

    def schedule(self, **given: Any) -> None:
        """Set the number of steps, the prompt groups in flight (`credits`, `window`; see
        `forgedsl/plan/credits.py`) and the largest policy age."""
        self._rest["schedule"] = spec.Schedule(**given)

    def checkpoint(self, **given: Any) -> None:
        """Set when to save, how many checkpoints to keep, and what to export."""
        self._rest["checkpoint"] = spec.Checkpoint(**given)

    def logging(self, **given: Any) -> None:
        """Set the destinations of metrics."""
        self._rest["logging"] = spec.Logging(**given)

    def proofs(self, **given: Any) -> None:
        """Turn proofs off, each with a reason."""
        self._rest["proofs"] = spec.Proofs(**given)

    def launcher(
        self,
        kind: str,
        pools: int = 0,
        cpus: int | None = None,
        memory: int | None = None,
        /,
        **args: Any,
    ) -> None:
        """Set the launcher. Pools of rewards and environments run on host number `pools`; each host
        has `cpus` and `memory`."""
        self._rest["launcher"] = spec.Launcher(
            kind=kind, args=args, pools=pools, cpus=cpus, memory=memory
        )

    def chosen(self, settings: Mapping[str, str]) -> None:
        """Record the values that the plan chose for `auto`; a resume from the file keeps them."""
        self._rest["chosen"] = dict(settings)

    def places(self, places: Mapping[str, str]) -> None:
        """Add the source places of declarations that exist only in the .forge file."""
        self._parts["origins"].update(places)

    # ---- nodes

    def node(
        self,
        name: str,
        op: str,
        target: str = "",
        inputs: Mapping[str, Edge] | None = None,
        *,
        level: str,
        at: str = "",
        **given: Any,
    ) -> Edge:
        """Add a node. The methods of datasets and services, and the methods below, call this one.

        Raises:
            ValueError: an input is no edge of an earlier node.
        """
        read = tuple(edge.read_as(argument) for argument, edge in (inputs or {}).items())
        unknown = {i.edge for i in read} - {node.name for node in self._nodes}
        if unknown:
            raise ValueError(f"{at}: node {name} reads {sorted(unknown)}, which no node produces")
        node = {"id": f"train/{name}"} | given
        self._nodes.append(
            spec.Node(name=name, op=op, target=target, inputs=read, level=level, origin=at, **node)  # type: ignore[arg-type]
        )
        self._parts["origins"].setdefault(name, at)
        return Edge(name, level)

    def score(self, name: str, scorer: Scorer, inputs: Mapping[str, Edge], **node: Any) -> Edge:
        """Score every completion."""
        return self.node(name, "score", scorer.name, inputs, level="rollout", **node)

    def call(
        self, name: str, function: Callable[..., Any], inputs: Mapping[str, Edge], **node: Any
    ) -> Edge:
        """Apply a pure function to a group, such as its advantages; with `level="batch"` to a
        batch."""
        function_name = self.function(function)
        return self.node(name, "call", function_name, inputs, **({"level": "group"} | node))

    def mask(
        self, name: str, function: Callable[..., Any], inputs: Mapping[str, Edge], **node: Any
    ) -> Edge:
        """Apply a predicate that decides if a group is kept."""
        function_name = self.function(function)
        return self.node(name, "mask", function_name, inputs, **({"level": "group"} | node))

    def keep(self, name: str, edge: Edge, mask: Edge, **node: Any) -> Edge:
        """Return the edge without the groups that the mask rejects."""
        inputs = {"edge": edge, "mask": mask}
        return self.node(name, "keep", "", inputs, level=edge.level, **node)

    def replay(self, name: str, inputs: Mapping[str, Edge], **node: Any) -> Edge:
        """Pack completions and their named fields as the batch of a step."""
        return self.node(name, "replay", "", inputs, level="batch", **node)

    # ---- what comes out

    def job(self) -> spec.Job:
        """Return the sealed job of this program."""
        file = self._functions.__file__
        assert file is not None
        origins = {name: at for name, at in sorted(self._parts["origins"].items()) if at}
        return spec.Job(
            **self._head,
            **(self._parts | {"origins": origins}),
            **self._rest,
            nodes=tuple(self._nodes),
            program=Path(file).read_text(encoding="utf-8"),
        ).sealed()

    # ---- parts

    def _declare(self, part: str, name: str, value: Any, at: str) -> None:
        if name in self._parts[part]:
            raise ValueError(f"{at}: {name} is declared twice")
        self._parts[part][name] = value
        if at:
            self._parts["origins"][name] = at

    def function(self, function: Callable[..., Any]) -> str:
        """Return the name of a function of the program's module.

        Raises:
            ValueError: it is not in that module.
        """
        name: str = function.__name__
        if getattr(self._functions, name, None) is not function:
            raise ValueError(f"{name} is no function of {self._functions.__name__}.py")
        return name

    def _file(self, path: str) -> Path:
        return locate(path, self.folder)

    def _text(self, path: str) -> str:
        return self._file(path).read_text(encoding="utf-8")

    def _hashed(self, source: Any) -> Any:
        """Return the source with the hash of its files."""
        if isinstance(source, spec.MixtureSource):
            parts = tuple(self._hashed(part) for part in source.sources)
            return source.model_copy(update={"sources": parts})
        if isinstance(source, spec.LocalModel | spec.FileSource):
            return source.model_copy(update={"sha256": digest(self._file(source.path))})
        return source


def _field(name: str, text: str) -> spec.LossField:
    """Parse a field of a loss, such as `diff [B, T] f32`; a scalar has no brackets."""
    head, _, rest = text.rpartition("] ")
    axes = head.partition("[")[2]
    return spec.LossField(
        name=name,
        axes=tuple(axis.strip() for axis in axes.split(",") if axis.strip()),
        dtype=rest.split()[-1],
        diff=text.split()[0] == "diff",
    )
