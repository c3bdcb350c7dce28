"""Lowers the models and datasets of a program to those of a job."""

from __future__ import annotations

from typing import Any

from forgedsl.emit.python import COLUMNS, function_name
from forgedsl.hir.rewards import plain_value
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Constructor, Decl, Deferred, Program, Ref, Value, model_of
from forgedsl.lower import job
from forgedsl.lower.packages import installed
from forgedsl.lower.paths import InputFiles
from forgedsl.plan.plan import Plan
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.settings import Auto
from forgedsl.types.flow import Role
from forgedsl.vllm_parsers import FORM


def lower_models(
    program: Program, graph: Graph, plan: Plan, files: InputFiles
) -> dict[str, job.Model]:
    """Lower the models of live services."""
    used = {model_of(program.services[name]) for name in graph.services}
    return {
        name: _model(decl, plan.contexts[name], files)
        for name, decl in program.models.items()
        if name in used
    }


def _form(value: object) -> str | None:
    """Return the form of tool calls as the job has it: "mistral", "vllm:glm47"."""
    if isinstance(value, Constructor):
        return FORM + str(value.args["name"])
    return None if isinstance(value, Auto) else str(value)


def _model(decl: Decl, context: int | None, files: InputFiles) -> job.Model:
    arch = decl.settings["arch"].value
    tokenizer = decl.settings["tokenizer"].value
    template, adapter = (decl.settings[key].value for key in ("chat_template", "adapter"))
    return job.Model(
        source=_weights(decl.settings["source"].value, files),
        adapter=_model_source(adapter, files) if isinstance(adapter, Constructor) else None,
        arch=_arch(arch) if isinstance(arch, Constructor) else None,
        dtype=decl.settings["dtype"].value,
        context=context,
        tokenizer=_model_source(tokenizer, files) if isinstance(tokenizer, Constructor) else None,
        chat_template=template if isinstance(template, str) else None,
        tool_calls=_form(decl.settings["tool_calls"].value),
    )


def _arch(constructor: Constructor) -> job.Arch:
    args = {key: value for key, value in constructor.args.items() if value is not None}
    size = args.pop("size", None)
    return job.Arch(family=constructor.name, size=size, dims=args)


def _weights(source: Constructor, files: InputFiles) -> job.ModelSource:
    if source.name == "local":
        files.check_model(source.args["path"], source.span)
    return _model_source(source, files)


def _model_source(source: Constructor, files: InputFiles) -> job.ModelSource:
    if source.name == "hf":
        return job.HfSource(id=source.args["id"], revision=source.args.get("revision"))
    if source.name == "local":
        path, sha256 = files.add(source.args["path"], source.span)
        return job.LocalModel(path=path, sha256=sha256)
    return job.RandomModel(seed=source.args["seed"])


# ---- datasets


def lower_datasets(
    program: Program, graph: Graph, plan: Plan, files: InputFiles
) -> dict[str, job.Dataset]:
    """Lower the datasets that are drawn from, and one dataset per eval."""
    drawn = {node.target for node in graph.sources}
    found = {
        name: _dataset(program, graph, decl, files, _prompt_limit(program, graph, plan, name))
        for name, decl in program.datasets.items()
        if name in drawn
    }
    for name, eval_decl in program.evals.items():
        decl = program.datasets[eval_dataset(eval_decl)]
        base = _dataset(
            program, graph, decl, files, _eval_prompt_limit(program, graph, plan, eval_decl)
        )
        source = _eval_source(eval_decl, decl, files)
        found[eval_entry(name, eval_decl)] = base.model_copy(
            update={"source": source, "shuffle": None}
        )
    return found


def _prompt_limit(program: Program, graph: Graph, plan: Plan, dataset: str) -> int | None:
    """Return the maximum tokens of a prompt, so that it and its completion fit the model's context
    and a row of the trainer; None if nothing is sampled, or it is unknown."""
    found = []
    for node in graph.having(Role.SAMPLES):
        if graph.node(node.root).target == dataset:
            service = program.services[node.target]
            bounds = (plan.contexts[model_of(service)], plan.request.rows[graph.trainer][1])
            new = int(service.settings["sampling.max_tokens"].value)
            found += [bound - new for bound in bounds if bound is not None]
    return max(1, min(found)) if found else None


def _eval_prompt_limit(program: Program, graph: Graph, plan: Plan, decl: Decl) -> int | None:
    """Return the maximum tokens of an eval's prompt. Its completions are not trained on, so the
    trainer's row does not limit it. None for an eval that measures a loss."""
    if decl.settings["loss"].value is not None:
        return None
    service = program.services[eval_service(graph)]
    context, new = plan.contexts[model_of(service)], decl.settings["sample.max_tokens"].value
    if not isinstance(new, int):
        new = int(service.settings["sampling.max_tokens"].value)
    return None if context is None else max(1, context - new)


def eval_dataset(decl: Decl) -> str:
    """Return the dataset that an eval names."""
    found = decl.settings["dataset"].value
    return found.name if isinstance(found, Ref) else str(found)


def eval_entry(name: str, decl: Decl) -> str:
    """Return the name of the entry of `Job.datasets` that an eval reads. It cannot clash with a
    declaration: names of declarations have dots only after the name of a module."""
    return f"{eval_dataset(decl)}.{name}"


def eval_service(graph: Graph) -> str:
    """Return the generator with the newest weights, else the first service that samples."""
    synced = [sync.settings["target"] for sync in graph.syncs]
    return str((synced or [node.target for node in graph.having(Role.SAMPLES)])[0])


def _dataset(
    program: Program, graph: Graph, decl: Decl, files: InputFiles, room: int | None
) -> job.Dataset:
    settings = decl.settings
    limit = settings["max_prompt_tokens"].value
    streaming = settings["streaming"].value
    named = {
        column: function_name("dataset", decl.name, column)
        for column in COLUMNS
        if isinstance(settings[column].value, Deferred)
    }
    return job.Dataset(
        source=_data_source(settings["source"].value, files),
        tokenizer=_tokenizer(program, graph, decl.name),
        **named,
        learn=settings["learn"].value if settings["chat"].value is not None else None,
        shuffle=_shuffle(program, settings["shuffle"]),
        streaming=False if isinstance(streaming, Auto) else streaming,
        max_prompt_tokens=room if limit is None else limit,
        on_long=settings["on_long"].value,
        max_bad_rows=settings["max_bad_rows"].value,
    )


def _tokenizer(program: Program, graph: Graph, dataset: str) -> str:
    """Return the model whose tokenizer a dataset uses: that of the first service that reads its
    items, else the trainer's."""
    drawn = {node.name for node in graph.sources if node.target == dataset}
    reader = next(
        (n.target for n in graph.having(Role.SAMPLES) if {i.edge for i in n.inputs} & drawn),
        graph.trainer,
    )
    return model_of(program.services[reader])


def _shuffle(program: Program, setting: Value) -> int | None:
    if isinstance(setting.value, Constructor):
        return int(setting.value.args["seed"])
    return None if setting.value is None else run_seed(program)


def run_seed(program: Program) -> int:
    """`run.seed`."""
    return int(program.singletons["run"].settings["seed"].value)


def _data_source(source: Constructor, files: InputFiles) -> Any:
    if source.name == "hf":
        return job.HfSource(**source.args)
    if source.name == "mixture":
        parts = tuple(_data_source(part, files) for part in source.args["sources"])
        return job.MixtureSource(sources=parts, weights=tuple(source.args["weights"]))
    if source.name == REASONING_GYM.name:
        args = dict(source.args)
        options = {key: plain_value(value) for key, value in args.pop("options").items()}
        return job.ReasoningGymSource(**args, options=options, packages=installed([source.name]))
    path, sha256 = files.add(source.args["path"], source.span)
    kind: Any = source.name
    return job.FileSource(kind=kind, path=path, sha256=sha256)


def _eval_source(decl: Decl, dataset: Decl, files: InputFiles) -> Any:
    """Return the eval's own source, else the dataset's source with the eval's split."""
    own, split = decl.settings["source"].value, decl.settings["split"]
    if isinstance(own, Constructor):
        return _data_source(own, files)
    source = _data_source(dataset.settings["source"].value, files)
    if split.value is None:
        return source
    # only hub datasets have splits; see plan.checks
    return source.model_copy(update={"split": split.value})
