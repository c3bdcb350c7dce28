"""Checks a plan against its models and hosts, one function per check.

P204 divisibility, P206 sequence-shard, P207 mesh-name, P208 colocate-async, P209 no-launcher,
P212, P214 transport, P223 threads-exceed-host, D605 context-overflow, F110, F111, F113 bad-value,
F131 no-generator. Checks that need a model's dimensions are skipped if they are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import lcm

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label, Reporter, error, warning
from forgedsl.families.base import Dims
from forgedsl.hir.table import RANK
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Constructor, Decl, Program, Value, model_of
from forgedsl.losses.infer import infer
from forgedsl.losses.tree import VALUE
from forgedsl.plan.cost import engine_judges, judge_tokens, most_siblings
from forgedsl.plan.environments import longest_text
from forgedsl.plan.experts import check_experts
from forgedsl.plan.host import launcher_of
from forgedsl.plan.pairs import is_paired
from forgedsl.records import replace
from forgedsl.schema import builtins
from forgedsl.services.registry import kind_of
from forgedsl.sizes.devices import linked
from forgedsl.sizes.hosts import Host
from forgedsl.sizes.memory import Request
from forgedsl.sizes.meshes import MeshPlan, number, setting_label, spots, value, written_at
from forgedsl.transports import TRANSPORTS, Spot, choose
from forgedsl.types.flow import Role

PARTS = {
    "heads": "heads", "kv_heads": "kv heads", "vocab": "vocabulary entries",
    "ffn": "columns of an MLP", "dense_ffn": "columns of an MLP in the first layers",
}  # fmt: skip


def check_divisibility(
    decl: Decl, mesh: MeshPlan, dims: Dims | None, model: Decl
) -> list[Diagnostic]:
    """P204: dimensions split by tensor, context and expert parallelism must divide evenly."""
    if dims is None:
        return []
    tp = mesh.degrees.get("tp", 1)
    parts = [(PARTS[name], int(getattr(dims, name))) for name in kind_of(mesh.kind).even]
    bad = [f"{size} {what}" for what, size in parts if size % tp]
    found = []
    if bad:
        fitting = [d for d in (1, 2, 4, 8, 16) if all(size % d == 0 for _, size in parts)]
        found.append(
            error(
                "P204",
                "divisibility",
                f"tp = {tp} does not divide {' and '.join(bad)} of model `{model.name}`",
                written_at(decl, "parallel.tp"),
                related=(Label(text="the model", span=model.name_span),),
                help=f"set tp to one of {', '.join(map(str, fitting))}",
            )
        )
    found += [] if bad else _check_context(decl, mesh, dims, model)
    if (pp := mesh.degrees.get("pp", 1)) > dims.layers:
        found.append(
            error(
                "P204",
                "divisibility",
                f"pp = {pp} is more than the {dims.layers} layers of model `{model.name}`",
                written_at(decl, "parallel.pp"),
                related=(Label(text="the model", span=model.name_span),),
                help=f"`parallel.pp = {dims.layers}` at most: each stage needs a layer",
            )
        )
    return found + check_experts(decl, mesh, dims, model)


def _check_context(decl: Decl, mesh: MeshPlan, dims: Dims, model: Decl) -> list[Diagnostic]:
    tp, cp = mesh.degrees.get("tp", 1), mesh.degrees.get("cp", 1)
    heads = dims.heads // tp
    # an engine copies kv heads if there are fewer than ranks
    kv_heads = max(1, dims.kv_heads // tp)
    if heads % lcm(kv_heads, cp) == 0:
        return []
    fitting = [d for d in (1, 2, 4, 8, 16) if heads % lcm(kv_heads, d) == 0]
    each = " on each rank of tp" if tp > 1 else ""
    return [
        error(
            "P204",
            "divisibility",
            f"cp = {cp} ranks cannot evenly share the {heads} heads and {kv_heads} kv heads{each} "
            f"of model `{model.name}`",
            written_at(decl, "parallel.cp"),
            related=(Label(text="the model", span=model.name_span),),
            help=f"set cp to one of {', '.join(map(str, fitting))}",
        )
    ]


def check_batch(decl: Decl) -> list[Diagnostic]:
    """F113: `rows` and `tokens` of a microbatch exclude each other."""
    rows, tokens = (decl.settings[f"batch.{key}"] for key in ("rows", "tokens"))
    if not _is_hidden(tokens, rows):
        return []
    return [
        error(
            "F113",
            "bad-value",
            "`batch.rows` is given, so `batch.tokens` has no effect",
            tokens.origin.span or decl.name_span,
            related=setting_label(decl, "batch.rows"),
            help="remove one of them",
        )
    ]


def check_auto(
    program: Program, graph: Graph, dims: Mapping[str, Dims | None], keys: Sequence[tuple[str, str]]
) -> list[Diagnostic]:
    """F113: settings that cannot be `auto`, and models of unknown size, for which `auto` cannot
    compare placements. `keys` are the `auto` settings: (service, setting)."""
    batch = [(n, k) for n, k in keys if n == graph.trainer and k in ("procs", "batch.rows")]
    found = [
        error("F113", "bad-value",
              f"`{key} = auto` of `{name}` cannot be chosen: it decides how many rows of "
              "`batches()` make a step",
              written_at(program.services[name], key), help="write the number")
        for name, key in batch if graph.having(Role.SUPERVISED)
    ]  # fmt: skip
    unknown = dict.fromkeys(model_of(program.services[n]) for n, d in dims.items() if d is None)
    return found + [
        error("F113", "bad-value",
              f"the size of model `{model}` is unknown, so the plan cannot choose values for "
              "`auto`",
              program.models[model].name_span,
              help="set the model's `arch`, or write numbers for `auto`")
        for model in unknown
    ]  # fmt: skip


def check_sampling(decl: Decl) -> list[Diagnostic]:
    """F113: the minimum length of a completion exceeds its maximum."""
    least, most = (decl.settings[f"sampling.{key}_tokens"] for key in ("min", "max"))
    if not isinstance(most.value, int) or int(least.value) <= most.value:
        return []
    return [
        error(
            "F113",
            "bad-value",
            f"`sampling.min_tokens = {least.value}` is more than `max_tokens = {most.value}`",
            written_at(decl, "sampling.min_tokens"),
            related=setting_label(decl, "sampling.max_tokens"),
        )
    ]


def check_fp8_weights(decl: Decl, dtype: str) -> list[Diagnostic]:
    """F113: only weights in bf16 or f16 can be quantized to fp8."""
    if value(decl, "engine.weight_dtype") != "fp8" or dtype != "f32":
        return []
    return [
        error(
            "F113",
            "bad-value",
            f"`{decl.name}` cannot quantize {dtype} weights to fp8",
            written_at(decl, "engine.weight_dtype"),
            related=setting_label(decl, "dtype"),
            help="set `dtype = bf16` of the service",
        )
    ]


def check_adapters(decl: Decl) -> list[Diagnostic]:
    """F113: `alpha` of LoRA adapters without a `rank`."""
    alpha = decl.settings.get("lora.alpha")
    if alpha is None:
        return []
    if alpha.origin.layer == "default" or decl.settings["lora.rank"].value is not None:
        return []
    return [
        error(
            "F113",
            "bad-value",
            "`lora.alpha` has no effect without `lora.rank`",
            alpha.origin.span or decl.name_span,
            help="set `lora.rank`, or remove `lora.alpha`",
        )
    ]


def check_stored_weights(decl: Decl, mesh: MeshPlan, dtype: str) -> list[Diagnostic]:
    """F113: weights stored in bf16 but computed in f32; offload without a GPU."""
    found = []
    if value(decl, "optimizer.precision") == "bf16" and dtype != "bf16":
        found.append(
            error(
                "F113",
                "bad-value",
                f"`{decl.name}` stores weights in bf16, so it cannot compute in {dtype}",
                written_at(decl, "optimizer.precision"),
                related=setting_label(decl, "dtype"),
                help="`dtype = bf16`",
            )
        )
    if value(decl, "memory.offload") and mesh.device == "cpu":
        found.append(
            error(
                "F113",
                "bad-value",
                f"`memory.offload` has no effect on a CPU: the weights of `{decl.name}` are "
                "already in host memory",
                written_at(decl, "memory.offload"),
                help="remove `memory.offload`, or set `device = gpu`",
            )
        )
    return found


def check_learning(program: Program, graph: Graph) -> list[Diagnostic]:
    """F113: settings of training for a service that the flow does not train."""
    return [
        error(
            "F113",
            "bad-value",
            f"`{key}` has no effect: the flow has no `{name}.step`, so `{name}` is frozen",
            given.origin.span or program.services[name].name_span,
            help="remove it",
        )
        for name in graph.services
        if name != graph.trainer
        for key, given in program.services[name].settings.items()
        if given.origin.layer != "default"
        and key.startswith(kind_of(program.services[name].ctor).learning or ("\0",))
    ]


def check_sequence_shard(decl: Decl, mesh: MeshPlan, seq_len: int) -> list[Diagnostic]:
    """P206: the length of rows must be divisible for tensor and context parallelism."""
    tp, cp = mesh.degrees["tp"], mesh.degrees["cp"]
    divisor = tp * cp
    if seq_len % divisor == 0:
        return []
    above = -(-seq_len // divisor) * divisor
    return [
        error(
            "P206",
            "sequence-shard",
            f"seq_len {seq_len} is not divisible by {divisor} (tp {tp}, cp {cp})",
            written_at(decl, "batch.seq_len"),
            help=f"`batch.seq_len = {above}`",
        )
    ]


def check_names(program: Program, meshes: tuple[MeshPlan, ...]) -> list[Diagnostic]:
    """P207: mesh names become attributes of the launcher's job state, so they are identifiers."""
    found = []
    first: dict[str, MeshPlan] = {}
    for mesh in meshes:
        decl = program.services[mesh.service]
        place = written_at(decl, "mesh_name")
        if not (mesh.name.isidentifier() and mesh.name.isascii()):
            found.append(
                error(
                    "P207",
                    "mesh-name",
                    f"mesh name `{mesh.name}` is not an identifier",
                    place,
                    help="use letters, digits and `_`",
                )
            )
        elif mesh.name in first:
            other = program.services[first[mesh.name].service]
            found.append(
                error(
                    "P207",
                    "mesh-name",
                    f"`{decl.name}` and `{other.name}` share the mesh name `{mesh.name}`",
                    place,
                    related=(Label(text="the other service", span=other.name_span),),
                    help="give each service a name of its own",
                )
            )
        first.setdefault(mesh.name, mesh)
    return found


def check_colocation(
    program: Program, graph: Graph, colocate: tuple[str, ...], mode: str
) -> list[Diagnostic]:
    """P208: services that share GPUs take turns, which excludes an asynchronous schedule."""
    turns = concurrent_sharers(graph, colocate)
    if mode != "async" or len(turns) < 2 or program.schedule is None:
        return []
    shared = program.singletons["colocate"].settings["value"].origin.span
    return [
        error(
            "P208",
            "colocate-async",
            f"{' and '.join(f'`{name}`' for name in turns)} share GPUs and must take turns, but "
            "the schedule is asynchronous",
            shared or program.schedule.span,
            related=(Label(text="the schedule", span=program.schedule.span),),
            help="write `schedule sync { ... }`, or remove `colocate`",
        )
    ]


def concurrent_sharers(graph: Graph, services: Sequence[str]) -> tuple[str, ...]:
    """Return those `services` that run at the same time under an asynchronous schedule: the trainer
    and the generators. A frozen model is not one of them, because the step waits for its result."""
    sampling = {node.target for node in graph.having(Role.SAMPLES)}
    sampling |= {str(sync.settings["target"]) for sync in graph.syncs}
    return tuple(name for name in services if name == graph.trainer or name in sampling)


def check_transports(request: Request, graph: Graph) -> list[Diagnostic]:
    """P214: an explicit transport must work between trainer and generator."""
    by_name = {mesh.service: mesh for mesh in request.meshes}
    found = []
    for sync in graph.syncs:
        written = sync.settings.get("transport", "auto")
        ends = spots(by_name[sync.target])[0], spots(by_name[str(sync.settings["target"])])
        way = next((each for each in TRANSPORTS if each.name == written), None)
        if way is None or way.serves(*ends):
            continue
        if launcher_of(request.program).one_machine:
            ends = _together(ends[0]), tuple(_together(spot) for spot in ends[1])
            if way.serves(*ends):
                continue
        found.append(
            error(
                "P214",
                "transport",
                f"transport {way.name} connects only {way.where}, which `{sync.target}` and "
                f"`{sync.settings['target']}` are not",
                sync.span,
                help=f"`transport = {choose(*ends, linked=linked(request.host.gpu))}`, or leave it "
                "to the plan",
            )
        )
    return found


def _together(spot: Spot) -> Spot:
    """Convert a place on a simulated host (`launcher = process`) to host 0, with GPU numbers that
    stay unique."""
    gpus = tuple(spot.host << 10 | gpu for gpu in spot.gpus)
    return replace(spot, host=0, gpus=gpus, stages=1)


def check_launcher(program: Program, meshes: tuple[MeshPlan, ...]) -> list[Diagnostic]:
    """P209: the plan uses more hosts than the launcher reaches."""
    used = {place.host for mesh in meshes for place in mesh.places}
    wide = [mesh for mesh in meshes if mesh.hosts > 1]
    # a plan that does not fit has no places
    hosts = max(len(used), *(mesh.hosts for mesh in meshes))
    facts = launcher_of(program)
    if facts.max_hosts is None or hosts <= facts.max_hosts:
        return []
    decl = program.services[(wide or list(meshes))[0].service]
    return [
        error(
            "P209",
            "no-launcher",
            f"the plan needs {hosts} hosts, but the launcher starts processes on one host only",
            decl.name_span,
            help='set a launcher for several hosts, such as `launcher = slurm(partition = "gpu", '
            "time = 12h)` (or `launcher = process`, whose hosts are processes of this "
            "machine), or make the plan fit on one host",
        )
    ]


def check_threads(request: Request) -> list[Diagnostic]:
    """P223: a process has more threads than its host has cores, if the number is known."""
    host = request.host
    return [
        warning(
            "P223",
            "threads-exceed-host",
            f"`{mesh.service}` has `cpus = {mesh.cpus}`, but a host has {host.cpus} ({host.said})",
            written_at(request.program.services[mesh.service], "cpus"),
            help=f"`cpus = {host.cpus}` at most; without `cpus`, processes share the cores",
        )
        for mesh in request.meshes
        if mesh.cpus is not None and mesh.cpus > host.cpus and host.said != Host().said
    ]


def check_evals(program: Program, graph: Graph) -> list[Diagnostic]:
    """P212: `split` of an eval needs a hub dataset, and no `source` of its own. F131: an eval
    samples, so the flow must sample from, or sync to, a generator."""
    found = [
        error(
            "P212",
            "split-of-file",
            f"`{decl.settings['dataset'].value.name}` has no splits: its source is not a dataset "
            "of the hub",
            decl.settings["split"].origin.span or decl.name_span,
            help="give the eval a `source` of its own",
        )
        for decl in program.evals.values()
        if _splits_a_file(decl, program)
    ]
    found += [
        error(
            "P212",
            "split-of-file",
            f"`{name}` has both a `source` of its own and a `split` of its dataset's source",
            decl.settings["split"].origin.span or decl.name_span,
            related=setting_label(decl, "source"),
            help="remove one of them",
        )
        for name, decl in program.evals.items()
        if _is_hidden(decl.settings["split"], decl.settings["source"])
    ]
    losses = {name: decl for name, decl in program.evals.items() if decl.settings["loss"].value}
    found += [d for decl in losses.values() for d in _check_loss(program, graph, decl)]
    if graph.syncs or graph.having(Role.SAMPLES):
        return found
    return found + [
        error(
            "F131",
            "no-generator",
            f"eval `{name}` needs a generator that the flow updates, but there is none",
            decl.name_span,
            help=f"add a vllm service and `sync {graph.trainer} -> NAME`, "
            "or measure a `loss` instead of a `score`",
        )
        for name, decl in program.evals.items()
        if name not in losses
    ]


def _check_loss(program: Program, graph: Graph, decl: Decl) -> Iterator[Diagnostic]:
    """F111: held-out rows provide only tokens to a loss. F110: the dataset must have them."""
    setting = decl.settings["loss"]
    loss = program.functions[setting.value.name]
    where = setting.origin.span or decl.name_span
    tree = infer(loss, Reporter())
    if tree is None:  # mistakes of the loss are reported when it is lowered
        return
    given = {*builtins.TRAINER_FIELDS, "mask", "last"}
    if not program.services[graph.trainer].head:
        given.remove(VALUE)
    foreign = [f.name for f in tree.fields if f.name not in given]
    if foreign:
        listed = ", ".join(f"`{name}`" for name in foreign)
        yield error(
            "F111",
            "loss-field",
            f"loss `{loss.name}` needs {listed}, which an eval does not have",
            where,
            help=(
                "the loss of an eval can read `mask` and what the trainer computes, as `rl.sft` "
                "does"
            ),
        )
    dataset = program.datasets[decl.settings["dataset"].value.name]
    needed = ("chosen", "rejected") if is_paired(tree) else ("chat",)
    for column in (c for c in needed if dataset.settings[c].value is None):
        yield error(
            "F110",
            "missing-setting",
            f"eval `{decl.name}` reads `{column}`, which `{dataset.name}` does not have",
            dataset.name_span,
            related=(Label(text="its loss is over conversations" if column == "chat"
                           else "its loss is over pairs", span=where),),
        )  # fmt: skip


def _is_hidden(setting: Value, by: Value) -> bool:
    """True if `by` is set and takes precedence over another setting: its layer is the same or
    stronger."""
    given = setting.value is not None and by.value is not None
    return given and RANK[setting.origin.layer] >= RANK[by.origin.layer]


def _splits_a_file(decl: Decl, program: Program) -> bool:
    if decl.settings["source"].value is not None or decl.settings["split"].value is None:
        return False
    dataset = program.datasets[decl.settings["dataset"].value.name]
    source = dataset.settings["source"].value
    return isinstance(source, Constructor) and source.name != "hf"


def check_judges(request: Request, graph: Graph) -> list[Diagnostic]:
    """D605: a judge's prompt must fit its context, if its maximum length is known."""
    found = []
    program = request.program
    for node in graph.having(Role.SCORES):
        samples = [graph.node(sampler) for sampler in sorted(node.samplers)]
        drawn = (program.datasets[graph.node(sample.root).target] for sample in samples)
        sampled = [
            (number(dataset, "max_prompt_tokens", 1), longest_text(program, sample) or 1)
            for dataset, sample in zip(drawn, samples, strict=True)
        ]
        for name, judge in engine_judges(program, node).items():
            service = judge.args["service"]
            context = request.contexts[service]
            tokens = judge_tokens(judge, sampled, most_siblings(samples))
            if context is not None and tokens >= context:
                model = model_of(program.services[service])
                found.append(
                    error(
                        "D605",
                        "context-overflow",
                        f"the judge's prompt of `{name}` has up to {tokens} tokens, more than the "
                        f"context {context} of its model `{model}`",
                        judge.span,
                        related=setting_label(program.models[model], "context"),
                        help="use a judge with a larger context, or a smaller `max_tokens` or "
                        "`max_prompt_tokens`",
                    )
                )
    return found


def check_context(
    program: Program, graph: Graph, contexts: Mapping[str, int | None], seq_len: int
) -> list[Diagnostic]:
    """D605: prompt and completion must fit the model's context and the trainer's rows."""
    found = []
    trainer = program.services[graph.trainer]
    for node in graph.having(Role.SAMPLES):
        service = program.services[node.target]
        new = number(service, "sampling.max_tokens", 0)
        root = graph.node(node.root)
        prompt = number(program.datasets[root.target], "max_prompt_tokens", 0)
        model = model_of(service)
        context = contexts[model]
        least = max(prompt, 1)
        total = least + new
        parts = (
            f"{prompt} prompt + {new} completion = {total} tokens"
            if prompt
            else f"{new} tokens of completion and a prompt"
        )
        related = setting_label(program.datasets[root.target], "max_prompt_tokens")
        if context is not None and total > context:
            found.append(
                error(
                    "D605",
                    "context-overflow",
                    f"{parts} exceed the context {context} of model `{model}`",
                    written_at(service, "sampling.max_tokens"),
                    related=(*related, *setting_label(program.models[model], "context")),
                    help=f"`sampling.max_tokens` <= {context - least}, or a larger `context`"
                    if prompt
                    else f"`context = {max(seq_len, 2 * new)}` leaves room for prompts",
                )
            )
        elif total > seq_len:
            fitting = f"`batch.seq_len = {total}`" if prompt else (
                f"set `batch.seq_len` to {new} plus the tokens of the longest prompt, or lower "
                "`sampling.max_tokens`"
            )  # fmt: skip
            found.append(error(
                "D605", "context-overflow",
                f"{parts} exceed the {seq_len} tokens of a row of `{trainer.name}`",
                written_at(trainer, "batch.seq_len"), related=related, help=fitting,
            ))  # fmt: skip
    return found


def check_rows_in_context(request: Request, reported: Sequence[Diagnostic]) -> list[Diagnostic]:
    """D605: a packed row of a trainer or of another scoring service must fit its model's context,
    for which the positions are made. Not if `reported` has found the same context too small."""
    found = []
    seen = {label.span for other in reported if other.code == "D605" for label in other.related}
    for name, (_, seq_len) in request.rows.items():
        decl, context = request.program.services[name], request.contexts.get(name)
        if context is None or seq_len <= context:
            continue
        model, origin = model_of(decl), decl.settings["batch.seq_len"].origin
        written = setting_label(request.program.models[model], "context")
        if any(label.span in seen for label in written):
            continue
        edits = (Edit(text=f"{context}", span=origin.span),) if origin.span is not None else ()
        found.append(
            error(
                "D605",
                "context-overflow",
                f"a row of `{name}` has {seq_len} tokens, more than the context {context} of model "
                f"`{model}`",
                written_at(decl, "batch.seq_len"),
                related=written,
                help=f"`batch.seq_len = {context}`, or a larger `context`",
                fix=Fix(message=f"set it to {context}", edits=edits, safe=False)
                if edits and origin.layer == "file"
                else None,
            )
        )
    return found
