"""Job -> a Python program against `forgedsl_runtime.api`, and the modules beside it.

    main.py                     models, services, nodes and edges as code
    functions.py                rows, rewards, rubrics, advantages, filters
    losses/NAME.py              a loss and its gradient in torch
    losses/NAME_kernels.py      the same in Triton
    losses/NAME.tree            the typed expression that both come from

`python main.py` makes the same job, with the same hash, and runs it.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from forgedsl.build.code import Call, Raw, documented, given, statement
from forgedsl.emit.python import COLUMNS
from forgedsl.lower import job as spec
from forgedsl.lower.job import Job
from forgedsl.operations.registry import declarations, operation
from forgedsl.services.registry import kind_of
from forgedsl.types.flow import Role

T = TypeVar("T")
FUNCTIONS = "functions"
ASKED = ("judge", "endpoint", "scorer")
"""kinds of rewards that need an explicit `kind`"""
RESERVED = {"Path", "functions", "program", "HERE", "TOPOLOGY", "main"}
HEADER = '''"""{title}

Written by forgec {compiler} from {file}. The argument `at` of a call is its place in that file.
{rest}

    python main.py                        trains, in runs/{name}-<time>
    python main.py --steps 3              a short run
    python main.py --help                 more
"""'''


def modules(job: Job) -> dict[str, str]:
    """Return all files of the program, by path."""
    files = {"main.py": main_text(job), f"{FUNCTIONS}.py": job.program}
    for name in job.losses:
        files |= loss_modules(job, name)
    return files


def loss_modules(job: Job, name: str) -> dict[str, str]:
    """Return the files of a loss."""
    loss, stem = job.losses[name], loss_stem(name)
    return {
        f"{stem}.py": loss.source,
        f"{stem}_kernels.py": loss.kernels,
        f"{stem}.tree": loss.tree,
    }


def loss_stem(name: str) -> str:
    """Return the path of a loss's files, without suffix."""
    return "losses/" + re.sub(r"\W", "_", name)


def main_text(job: Job) -> str:
    """Return the text of main.py."""
    return _Main(job).text()


class _Main:
    """Writes a program. `names` are the variables of declarations and edges."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.names: dict[tuple[str, str], str] = {}
        self.used: set[str] = set()
        self.api: set[str] = {"Program"}
        self.placed: set[str] = set()

    def text(self) -> str:
        """Return the header and all sections. Imports are the names that the sections used."""
        sections = [
            ("Parameters, with their final values", self.params()),
            ("Models and data", [*self.models(), *self.datasets()]),
            ("Services: each is a mesh of processes", self.services()),
            ("Rewards", self.scores()),
            ("Environments for rollouts of several turns", self.environments()),
            *(
                (each.program, self.declared(kind, each.section))
                for kind, each in declarations().items()
            ),
            ("Losses: generated and differentiated, in losses/", self.losses()),
            ("The flow: every call is a node, every name an edge", self.nodes()),
            ("Schedule and what goes with it", self.rest()),
        ]
        body = [
            f"# ---- {title}\n\n" + "\n".join(lines)
            for title, lines in ((title, list(lines)) for title, lines in sections)
            if lines
        ]
        main = 'if __name__ == "__main__":\n    main(program)'
        return "\n\n".join([*self.head(), *body, main]) + "\n"

    def head(self) -> Iterator[str]:
        job = self.job
        title, *rest = job.summary or (job.name,)
        file = next((at.rpartition(":")[0].rpartition(":")[0] for at in job.origins.values()), "")
        yield HEADER.format(
            title=documented(title), compiler=job.compiler, file=file, name=documented(job.name),
            rest=documented("\n".join(rest)),
        )  # fmt: skip
        names = ", ".join(sorted(self.api, key=_isort))
        imports = f"from forgedsl_runtime.api import {names}"
        if len(imports) > 100:
            lines = "".join(f"    {name},\n" for name in sorted(self.api, key=_isort))
            imports = f"from forgedsl_runtime.api import (\n{lines})"
        imports = f"from forgedsl.cli.program import main\n{imports}"
        yield f"from pathlib import Path\n\n{imports}\n\nimport {FUNCTIONS}"
        yield f'HERE = Path(__file__).parent\nTOPOLOGY = """\\\n{documented(job.topology)}"""'
        args = [
            (None, job.name), ("folder", Raw("HERE")), ("functions", Raw(FUNCTIONS)),
            ("seed", job.seed), ("profile", job.profile), ("summary", job.summary),
            ("topology", Raw("TOPOLOGY")), ("compiler", job.compiler),
        ]  # fmt: skip
        if job.extensions:
            args.append(("extensions", tuple(spec.extension_names(job.extensions))))
        yield statement("program = ", Call("Program", args))

    # ---- names

    def variable(self, kind: str, name: str) -> str:
        """Return the variable of a declaration or edge."""
        if (kind, name) not in self.names:
            base = re.sub(r"\W", "_", name)
            while base in self.used | RESERVED or keyword.iskeyword(base):
                base += "_"
            self.used.add(base)
            self.names[kind, name] = base
        return self.names[kind, name]

    def raw(self, kind: str, name: str) -> Raw:
        return Raw(self.variable(kind, name))

    def function(self, name: str) -> Raw:
        return Raw(f"{FUNCTIONS}.{name}")

    def at(self, name: str) -> list[tuple[str | None, Any]]:
        """Return the argument `at="file.forge:line:column"` of a declaration."""
        self.placed.add(name)
        place = self.job.origins.get(name)
        return [("at", place)] if place else []

    def import_names_of(self, value: T) -> T:
        """Return code, and record the classes it names for the import."""
        if isinstance(value, Call):
            self.api.add(value.function)
            for _, item in value.args:
                self.import_names_of(item)
        elif isinstance(value, list | tuple):
            for item in value:
                self.import_names_of(item)
        elif isinstance(value, dict):
            for item in value.values():
                self.import_names_of(item)
        return value

    def fields(self, part: Any, *but: str) -> list[tuple[str | None, Any]]:
        return [(name, self.import_names_of(value)) for name, value in given(part, but=but)]

    # ---- declarations

    def params(self) -> Iterator[str]:
        for name, value in self.job.params.items():
            yield statement(
                "", Call("program.param", [(None, name), (None, value), *self.at(name)])
            )

    def models(self) -> Iterator[str]:
        for name, model in self.job.models.items():
            tokenizer = model.tokenizer
            own = [] if tokenizer is None else [("tokenizer", self.source(tokenizer))]
            args = [
                (None, name), (None, self.source(model.source)),
                *self.fields(model, "source", "tokenizer"), *own, *self.at(name),
            ]  # fmt: skip
            yield statement(f"{self.variable('model', name)} = ", Call("program.model", args))

    def datasets(self) -> Iterator[str]:
        for name, dataset in self.job.datasets.items():
            args = [
                (None, name), (None, self.source(dataset.source)),
                ("tokenizer", self.raw("model", dataset.tokenizer)),
                *((c, self.function(f)) for c in COLUMNS if (f := getattr(dataset, c))),
                *((k, v) for k, v in self.fields(dataset, "source", "tokenizer", *COLUMNS)
                  if v is not None),
                *self.at(name),
            ]  # fmt: skip
            yield statement(f"{self.variable('dataset', name)} = ", Call("program.dataset", args))

    def source(self, source: Any) -> Call:
        """Return the call that makes a source."""
        if isinstance(source, spec.MixtureSource):
            parts = [self.source(part) for part in source.sources]
            return self.import_names_of(
                Call("mixture", [(None, parts), (None, list(source.weights))])
            )
        if isinstance(source, spec.HfSource):
            rest = given(source, but=("kind", "id"))
            return self.import_names_of(Call("hf", [(None, source.id), *rest]))
        if isinstance(source, spec.ReasoningGymSource):
            rest = given(source, but=("kind", "task"))
            return self.import_names_of(Call(source.kind, [(None, source.task), *rest]))
        argument = source.seed if isinstance(source, spec.RandomModel) else source.path
        return self.import_names_of(Call(source.kind, [(None, argument)]))

    def services(self) -> Iterator[str]:
        for name, service in self.job.services.items():
            known = kind_of(service.kind).in_python
            args = [
                (None, name), *([] if known else [(None, service.kind)]),
                (None, self.raw("model", service.model)),
                *self.fields(service, "kind", "model"), *self.at(name),
            ]  # fmt: skip
            method = f"program.{service.kind}" if known else "program.service"
            yield statement(f"{self.variable('service', name)} = ", Call(method, args))
        for group in self.job.colocate:
            yield statement(
                "", Call("program.colocate", [(None, self.raw("service", n)) for n in group])
            )

    def scores(self) -> Iterator[str]:
        for name, reward in self.job.rewards.items():
            own = self.function(reward.function) if reward.kind == "program" else reward.function
            args = [
                (None, name), (None, own), *([("file", reward.path)] if reward.path else []),
                *([("kind", reward.kind)] if reward.kind in ASKED else []),
                *self.fields(reward, "kind", "function", "path", "sha256"), *self.at(name),
            ]  # fmt: skip
            yield statement(f"{self.variable('score', name)} = ", Call("program.reward", args))
        for name, rubric in self.job.rubrics.items():
            args = [
                (None, name), (None, self.function(rubric.function)),
                (None, [self.raw("score", reward) for reward in rubric.rewards]),
                *((k, v) for k, v in self.fields(rubric, "function", "rewards")
                  if (k, v) != ("on_truncated", None)),
                *self.at(name),
            ]  # fmt: skip
            yield statement(f"{self.variable('score', name)} = ", Call("program.rubric", args))

    def environments(self) -> Iterator[str]:
        for name, played in self.job.environments.items():
            args = [
                (None, name), (None, played.type_name), ("file", played.path),
                *self.fields(played, "type_name", "path", "sha256"), *self.at(name),
            ]  # fmt: skip
            yield statement(f"{self.variable('env', name)} = ", Call("program.environment", args))

    def declared(self, kind: str, section: str) -> Iterator[str]:
        """Yield the declarations of operations, such as buffers."""
        for name, kept in getattr(self.job, section).items():
            args = [(None, name), *self.fields(kept), *self.at(name)]
            yield statement(f"{self.variable(kind, name)} = ", Call(f"program.{kind}", args))

    def losses(self) -> Iterator[str]:
        for name, loss in self.job.losses.items():
            reads = {field.name: _type(field) for field in loss.fields}
            args = [
                (None, name), (None, loss_stem(name)),
                *([("name", loss.name)] if loss.name != name else []),
                ("reads", reads), ("reports", loss.reports), ("kinks", loss.kinks),
                *([("python", loss.python)] if loss.python else []),
                *self.at(name),
            ]  # fmt: skip
            yield statement(f"{self.variable('loss', name)} = ", Call("program.loss", args))

    # ---- nodes

    def nodes(self) -> Iterator[str]:
        for node in self.job.nodes:
            unit = operation(node.op)
            edge = f"{self.variable('edge', node.name)} = " if unit.has_result else ""
            yield statement(
                edge, self.as_method_call(node) if unit.owner else self.as_generic_node(node)
            )

    def as_method_call(self, node: spec.Node) -> Call:
        """Write a node as a call of an object's method."""
        unit = operation(node.op)
        method = f"{self.owner(node)}.{unit.method or unit.name}"
        return Call(method, [*self.arguments(node), *self.extra(node)])

    def as_generic_node(self, node: spec.Node) -> Call:
        """Write a node whose operation has no method: `program.node(...)`."""
        edges = {i.argument: self.edge(i) for i in node.inputs}
        args: list[tuple[str | None, Any]] = [
            (None, node.name), (None, node.op), (None, node.target), (None, edges),
            ("level", node.level),
        ]  # fmt: skip
        fields = self.fields(node, "id", "name", "op", "target", "inputs", "level", "origin")
        if self.job.origins.get(node.name) == node.origin:
            self.placed.add(node.name)
        place = [("at", node.origin)] if node.origin else []
        extra = sorted((node.model_extra or {}).items())
        return Call("program.node", [*args, *fields, *extra, ("id", node.id), *place])

    def owner(self, node: spec.Node) -> str:
        """Return the object whose method makes the node."""
        owner = operation(node.op).owner
        return owner if owner == "program" else self.variable(owner, node.target)

    def arguments(self, node: spec.Node) -> list[tuple[str | None, Any]]:
        """Return name, target, edges and required settings of a node."""
        edges = {i.argument: self.edge(i) for i in node.inputs}
        found: list[tuple[str | None, Any]] = [(None, node.name)]
        if Role.SCORES in node.roles:
            found += [(None, self.raw("score", node.target)), (None, edges)]
        elif Role.COMPUTES in node.roles:
            found += [(None, self.function(node.target)), (None, edges)]
        elif node.roles & {Role.PACKS, Role.STORES}:  # named fields
            found.append((None, edges))
        elif (
            Role.UPDATES in node.roles and len(edges) > 1
        ):  # `beside` has the losses of further batches
            found.append((None, list(edges.values())))
        else:
            found += [(None, edge) for edge in edges.values()]
        if node.loss is not None:
            found.append(("loss", self.raw("loss", node.loss)))
        if node.to is not None:
            found.append(("to", self.raw("service", node.to)))
        if node.count is not None:
            found.append((None, node.count))
        if node.weight is not None:
            found.append(("weight", self.function(node.weight)))
        if node.env is not None:
            found.append(("env", self.raw("env", node.env)))
        return found

    def edge(self, read: spec.Input) -> Raw:
        path = [self.variable("edge", read.edge), *([read.attribute] if read.attribute else [])]
        return Raw(".".join(path))

    def extra(self, node: spec.Node) -> list[tuple[str | None, Any]]:
        """Return optional settings, then id and source place."""
        but = ("id", "name", "op", "target", "inputs", "level", "count", "weight", "loss", "to",
               "at_step", "env", "origin")  # fmt: skip
        place = [("at", node.origin)] if node.origin else []
        if self.job.origins.get(node.name) == node.origin:
            self.placed.add(node.name)
        level: list[tuple[str | None, Any]] = []
        if Role.COMPUTES in node.roles and node.level != "group":
            level = [("level", node.level)]
        return [*level, *self.fields(node, *but), ("id", node.id), *place]

    # ---- other sections

    def rest(self) -> Iterator[str]:
        job = self.job
        yield statement("", Call("program.schedule", self.fields(job.schedule)))
        for name, found in job.evals.items():
            args = [
                (None, name), (None, self.raw("dataset", found.dataset)),
                (None, self.raw("service", found.service)),
                *([(None, self.raw("score", found.score))] if found.score else []),
                *([("loss", self.raw("loss", found.loss))] if found.loss else []),
                *self.fields(found, "dataset", "service", "score", "loss"), *self.at(name),
            ]  # fmt: skip
            yield statement("", Call("program.eval", args))
        for part in ("checkpoint", "logging", "proofs"):
            if fields := self.fields(getattr(job, part)):
                yield statement("", Call(f"program.{part}", fields))
        launcher = job.launcher
        if launcher != spec.Launcher():
            facts = (launcher.kind, launcher.pools, launcher.cpus, launcher.memory)
            args = [*((None, fact) for fact in facts), *launcher.args.items()]
            yield statement("", Call("program.launcher", args))
        if job.chosen:
            yield statement("", Call("program.chosen", [(None, job.chosen)]))
        left = {name: at for name, at in job.origins.items() if name not in self.placed}
        if left:
            yield statement("", Call("program.places", [(None, left)]))


def _type(field: spec.LossField) -> str:
    """Write a type in .forge syntax: `diff [B, T] f32`."""
    axes = f"[{', '.join(field.axes)}] " if field.axes else ""
    return f"{'diff ' if field.diff else ''}{axes}{field.dtype}"


def _isort(name: str) -> tuple[int, str]:
    """Sort imported names: constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name
