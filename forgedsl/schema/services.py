"""Schemas of the services: `titan(model)`, a torchtitan model, and `vllm(model)`, an engine."""

from __future__ import annotations

from forgedsl.records import replace
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
    Limit,
    Setting,
    Type,
    word,
)

_NUM: Impact = "numerics"
_PLACE: Impact = "placement"
_COUNT = replace(COUNT, optional=True)
_TEMPERATURE = replace(SOME, usual=(0.01, 5.0))
_BETA = Type(base="float", minimum=0.0, below=1.0)


def _row(name: str, type_: Type, default: object, impact: Impact, doc: str) -> Setting:
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
_COMMON = (
    _row("hosts", COUNT, 1, _PLACE, "hosts"),
    _GPUS,
    _row("cpus", replace(COUNT, auto=True), AUTO, _PLACE, "threads of each of its processes"),
    _DEVICE,
    _row("dtype", word("f32", "bf16", "f16"), Derived("the model's"), _NUM, "dtype in use"),
    _row("mesh_name", STR, Derived("the service's name"), _PLACE, "name of its process mesh"),
)

TITAN = Kind(
    name="service",
    doc="a torchtitan model: trained where the flow steps it, else frozen",
    support=(
        Limit(setting="parallel.pp", instead="`parallel.dp_shard` spreads the weights over ranks"),
        Limit(setting="parallel.cp", instead="`parallel.tp` splits the activations of long rows"),
        Limit(setting="parallel.ep", instead="a model with experts computes in one process"),
        Limit(setting="batch.accumulate", op="batches",
              instead="a step takes all groups drawn for it, in microbatches of `batch.rows`"),
    ),
    settings=(
        *_COMMON,
        _row("procs", COUNT, 1, _PLACE, "processes per host"),
        _row("temperature", _TEMPERATURE, 1.0, _NUM, "divides the logits before every log-prob"),
        _row("compile", replace(BOOL, auto=True), AUTO, _PLACE, "torch.compile the model"),
        _row("parallel.dp_shard", replace(COUNT, auto=True), AUTO, _PLACE,
             "sharded data parallel; auto is hosts x procs over the others"),
        _row("parallel.dp_replicate", COUNT, 1, _PLACE, "replicated data parallel"),
        _row("parallel.tp", COUNT, 1, _PLACE, "tensor parallel"),
        _row("parallel.cp", COUNT, 1, _PLACE, "context parallel"),
        _row("parallel.pp", COUNT, 1, _PLACE, "pipeline parallel"),
        _row("parallel.ep", COUNT, 1, _PLACE, "expert parallel"),
        _row("optimizer.kind", word("adamw", "adam"), "adamw", _NUM, "optimizer"),
        _row("optimizer.lr", replace(POSITIVE, usual=(1e-10, 0.1)), 1e-6, _NUM, "learning rate"),
        _row("optimizer.betas", Type(base="list", item=_BETA, size=2), [0.9, 0.95], _NUM,
             "decay of the moments"),
        _row("optimizer.eps", replace(POSITIVE, usual=(0.0, 1e-2)), 1e-8, _NUM,
             "added to the denominator"),
        _row("optimizer.weight_decay", replace(POSITIVE, usual=(0.0, 1.0)), 0.1, _NUM,
             "weight decay"),
        _row("optimizer.warmup", NATURAL, 0, _NUM, "steps of linear warm-up"),
        _row("optimizer.decay", word("none", "linear", "cosine"), "none", _NUM,
             "decay of the learning rate"),
        _row("optimizer.max_norm", POSITIVE, 1.0, _NUM, "gradients are clipped to it"),
        _row("optimizer.on_nan", word("stop", "skip"), "stop", _NUM,
             "what a non-finite gradient does"),
        _row("lora.rank", replace(_COUNT, usual=(1, 2048)), None, _NUM,
             "train adapters of this rank on every linear layer instead of the weights"),
        _row("lora.alpha", SOME, 32.0, _NUM, "adapters are scaled by alpha / rank"),
        _row("batch.seq_len", replace(COUNT, auto=True), AUTO, _NUM,
             "tokens per packed row; auto is the model's context"),
        _row("batch.rows", _COUNT, None, _NUM, "rows per rank and microbatch"),
        _row("batch.tokens", _COUNT, None, _NUM, "or tokens per rank and microbatch"),
        _row("batch.pack", BOOL, True, _NUM,
             "several sequences share a row, or each has its own"),
        _row("batch.accumulate", replace(COUNT, auto=True), AUTO, _NUM,
             "microbatches per step; auto is as many as the batch needs"),
        _row("memory.activation_checkpoint", word("none", "selective", "full"), "none", _PLACE,
             "recompute activations in the backward pass"),
    ),
)  # fmt: skip

ENGINE_ARGUMENTS = (
    ("model", "the model of the service does"),
    ("tokenizer", "the model's `tokenizer` does"),
    ("dtype", "the service's `dtype` does"),
    ("max_model_len", "the model's `context` does"),
    ("seed", "`run.seed` does"),
    ("enable_prefix_caching", "`engine.prefix_caching` does"),
    ("enforce_eager", "`engine.cuda_graphs` does"),
    ("max_num_seqs", "`engine.max_running` does"),
    ("gpu_memory_utilization", "`engine.gpu_memory` does"),
    ("tensor_parallel_size", "`parallel.tp` does"),
    ("pipeline_parallel_size", "`parallel.pp` does"),
    ("data_parallel_size", "`parallel.dp` does"),
    ("logprobs_mode", "log-probs are those of the distribution that was sampled from"),
    ("load_format", "the folder of the model does"),
    ("distributed_executor_backend", "Monarch starts the ranks"),
    ("disable_log_stats", "events.jsonl has the figures"),
    ("scheduler_cls", "the runtime has its own"),
)
"""arguments of vLLM that runtime/upstream/vllm.py sets, and what decides them"""

VLLM = Kind(
    name="service",
    doc="a vLLM engine that samples completions",
    support=(
        Limit(setting="parallel.pp", instead="`parallel.tp` splits a model that is too large"),
        Limit(setting="parallel.dp", instead="`replicas` adds throughput"),
    ),
    open=("engine.extra",),
    taken=tuple((f"engine.extra.{name}", why) for name, why in ENGINE_ARGUMENTS),
    settings=(
        *_COMMON,
        _row("procs", COUNT, Derived("tp x pp x dp over hosts"), _PLACE, "processes per host"),
        _row("replicas", COUNT, 1, _PLACE, "engines behind the router"),
        _row("route", word("least_loaded", "round_robin", "sticky"), "least_loaded", _PLACE,
             "how requests find a replica; sticky: those of one prompt share one"),
        _row("parallel.tp", COUNT, 1, _PLACE, "tensor parallel"),
        _row("parallel.pp", COUNT, 1, _PLACE, "pipeline parallel"),
        _row("parallel.dp", COUNT, 1, _PLACE, "data parallel"),
        _row("sampling.temperature", replace(POSITIVE, usual=(0.0, 5.0)), 1.0, _NUM,
             "divides the logits"),
        _row("sampling.top_p", PART, 1.0, _NUM, "keep the likeliest tokens of this mass"),
        _row("sampling.top_k", _COUNT, None, _NUM, "keep so many tokens"),
        _row("sampling.min_p", FRACTION, 0.0, _NUM, "keep tokens this likely against the best"),
        _row("sampling.max_tokens", replace(COUNT, optional=True), None, _NUM,
             "longest completion"),
        _row("sampling.min_tokens", NATURAL, 0, _NUM, "shortest completion"),
        _row("sampling.stop", Type(base="list", item=STR, auto=True), AUTO, _NUM,
             "strings that end a completion; auto is the model's"),
        _row("engine.gpu_memory", replace(PART, auto=True), AUTO, _PLACE,
             "part of the device it may use"),
        _row("engine.prefix_caching", BOOL, True, _PLACE, "reuse the KV of shared prefixes"),
        _row("engine.cuda_graphs", BOOL, True, _PLACE, "replay recorded kernels"),
        _row("engine.max_running", replace(COUNT, auto=True), AUTO, _PLACE,
             "completions decoded at once"),
    ),
)  # fmt: skip
