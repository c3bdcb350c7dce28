"""A program: declarations and nodes as they are made -> the `Job` that they state.

Short forms of nodes that belong to a dataset or a service are methods of those (handles.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from forgedsl import extensions as outside
from forgedsl.lower import job as spec
from forgedsl.lower.paths import digest
from forgedsl.runtime.api.handles import (
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
from forgedsl.runtime.tracebacks import install_places
from forgedsl.shipped import locate
from forgedsl.version import VERSION


class Program:
    """Collects declarations and nodes; `job()` is what they say.

    `folder` is where the program lies: files are named relative to it. `functions` is the module
    with the pure functions of the job.
    """

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
        """A parameter; what uses it has its value already."""
        self._declare("params", name, value, at)
        return value

    def model(self, name: str, source: spec.ModelSource, *, at: str = "", **given: Any) -> Model:
        """A model: `arch`, `dtype`, `context`, `tokenizer`, `chat_template`."""
        tokenizer = given.pop("tokenizer", None)
        model = spec.Model(
            source=self._hashed(source),
            tokenizer=None if tokenizer is None else self._hashed(tokenizer),
            **given,
        )
        self._declare("models", name, model, at)
        return Model(name)

    def dataset(
        self, name: str, source: spec.DataSource, *, tokenizer: Model, at: str = "", **given: Any
    ) -> Dataset:
        """Rows, and the functions that turn a row into what a node draws."""
        columns: dict[str, Any] = {"shuffle": None}
        columns |= {k: self.function(v) if callable(v) else v for k, v in given.items()}
        dataset = spec.Dataset(source=self._hashed(source), tokenizer=tokenizer.name, **columns)
        self._declare("datasets", name, dataset, at)
        return Dataset(self, name)

    def titan(self, name: str, model: Model, *, at: str = "", **given: Any) -> Titan:
        """A torchtitan service: trained if it has an optimizer, else frozen."""
        service = spec.TitanService(model=model.name, **given)
        self._declare("services", name, service, at)
        return Titan(self, name, trained=service.optimizer is not None)

    def vllm(self, name: str, model: Model, *, at: str = "", **given: Any) -> Generator:
        """A vLLM service."""
        self._declare("services", name, spec.VllmService(model=model.name, **given), at)
        return Generator(self, name)

    def service(
        self, name: str, kind: str, model: Model, *, at: str = "", **given: Any
    ) -> Titan | Generator:
        """A service of a kind of an extension."""
        service = spec.service_of({"kind": kind, "model": model.name} | given)
        self._declare("services", name, service, at)
        if isinstance(service, spec.Sampler):
            return Generator(self, name)
        return Titan(self, name, trained=service.trained)

    def colocate(self, *services: Titan | Generator) -> None:
        """These services share their GPUs."""
        shared = self._rest.get("colocate", ())
        self._rest["colocate"] = (*shared, tuple(service.name for service in services))

    def environment(
        self, name: str, type_name: str, *, file: str, at: str = "", **given: Any
    ) -> Env:
        """An environment: the name of its class in a Python file."""
        path = self._file(file)
        played = spec.Environment(type_name=type_name, path=file, sha256=digest(path), **given)
        self._declare("environments", name, played, at)
        return Env(name)

    def buffer(self, name: str, *, groups: int, max_age: int, at: str = "") -> Buffer:
        """Groups that were trained on, for later steps."""
        self._declare("buffers", name, spec.Buffer(groups=groups, max_age=max_age), at)
        return Buffer(self, name)

    def reward(
        self, name: str, function: str | Callable[..., Any], *, at: str = "", **given: Any
    ) -> Scorer:
        """A reward: a function of the program, the name of a standard one, or, with `file`, the
        name of a function in that Python file, called with (prompt, response, target) unless
        `inputs` says what each parameter is given; a judge with its `kind`."""
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
        """One score from several rewards."""
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
        """A loss from its generated modules: STEM.py (torch), STEM_kernels.py (Triton), STEM.tree.

        `reads` are its fields, such as `{"logprob": "diff [B, T] f32"}`.
        """
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
        """Held-out rows, every so many steps: sampled and scored, or a loss of them."""
        at = given.pop("at", "")
        found = spec.Eval(
            dataset=dataset.name, service=service.name, score=None if score is None else score.name,
            loss=None if loss is None else loss.name, **given,
        )  # fmt: skip
        self._declare("evals", name, found, at)

    def schedule(self, **given: Any) -> None:
        """Length, credits, window and worst age."""
        self._rest["schedule"] = spec.Schedule(**given)

    def checkpoint(self, **given: Any) -> None:
        """When to save, how much to keep, what to export."""
        self._rest["checkpoint"] = spec.Checkpoint(**given)

    def logging(self, **given: Any) -> None:
        """Where metrics go."""
        self._rest["logging"] = spec.Logging(**given)

    def launcher(
        self,
        kind: str,
        pools: int = 0,
        cpus: int | None = None,
        memory: int | None = None,
        /,
        **args: Any,
    ) -> None:
        """What starts the processes; rewards are on host `pools`, and each has so much."""
        self._rest["launcher"] = spec.Launcher(
            kind=kind, args=args, pools=pools, cpus=cpus, memory=memory
        )

    def chosen(self, settings: Mapping[str, str]) -> None:
        """What the plan chose where the file says `auto`; a resume from the file keeps it."""
        self._rest["chosen"] = dict(settings)

    def places(self, places: Mapping[str, str]) -> None:
        """Where declarations stand that have no object of their own here."""
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
        """One node; the methods of datasets and services, and those below, are its short forms."""
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
        """The score of every completion."""
        return self.node(name, "score", scorer.name, inputs, level="rollout", **node)

    def call(
        self, name: str, function: Callable[..., Any], inputs: Mapping[str, Edge], **node: Any
    ) -> Edge:
        """A pure function of a group, such as its advantages; of a batch with `level="batch"`."""
        function_name = self.function(function)
        return self.node(name, "call", function_name, inputs, **({"level": "group"} | node))

    def mask(
        self, name: str, function: Callable[..., Any], inputs: Mapping[str, Edge], **node: Any
    ) -> Edge:
        """Whether a group is kept."""
        function_name = self.function(function)
        return self.node(name, "mask", function_name, inputs, **({"level": "group"} | node))

    def keep(self, name: str, edge: Edge, mask: Edge, **node: Any) -> Edge:
        """The edge without the groups that the mask rejects."""
        inputs = {"edge": edge, "mask": mask}
        return self.node(name, "keep", "", inputs, level=edge.level, **node)

    def replay(self, name: str, inputs: Mapping[str, Edge], **node: Any) -> Edge:
        """Completions and their named fields as the batch of a step."""
        return self.node(name, "replay", "", inputs, level="batch", **node)

    # ---- what comes out

    def job(self) -> spec.Job:
        """The job that this program states, sealed."""
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
        """The name of a function of the program's module."""
        name: str = function.__name__
        if getattr(self._functions, name, None) is not function:
            raise ValueError(f"{name} is no function of {self._functions.__name__}.py")
        return name

    def _file(self, path: str) -> Path:
        return locate(path, self.folder)

    def _text(self, path: str) -> str:
        return self._file(path).read_text(encoding="utf-8")

    def _hashed(self, source: Any) -> Any:
        """The source with the hash of its files."""
        if isinstance(source, spec.MixtureSource):
            parts = tuple(self._hashed(part) for part in source.sources)
            return source.model_copy(update={"sources": parts})
        if isinstance(source, spec.LocalModel | spec.FileSource):
            return source.model_copy(update={"sha256": digest(self._file(source.path))})
        return source


def _field(name: str, text: str) -> spec.LossField:
    """`diff [B, T] f32` -> its field; a scalar has no brackets."""
    head, _, rest = text.rpartition("] ")
    axes = head.partition("[")[2]
    return spec.LossField(
        name=name,
        axes=tuple(axis.strip() for axis in axes.split(",") if axis.strip()),
        dtype=rest.split()[-1],
        diff=text.split()[0] == "diff",
    )
