"""Service `vllm`: an engine that samples completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from forgedsl.ir.program import Decl, Program
from forgedsl.records import replace
from forgedsl.services.base import (
    COMMON,
    GIB,
    NUM,
    PLACE,
    SAMPLING,
    Capability,
    PlannedService,
    SamplingCost,
    ServiceKind,
    row,
)
from forgedsl.settings import (
    AUTO,
    BOOL,
    COUNT,
    POSITIVE_FRACTION,
    Derived,
    Kind,
    Limit,
    Type,
    word,
)
from forgedsl.sizes.memory import BATCHED_TOKENS, RankMemory, Request
from forgedsl.sizes.meshes import MeshPlan

if TYPE_CHECKING:
    from forgedsl.job.parts import Service

ENGINE_ARGUMENTS = (
    ("model", "remove it: the engine uses the model of the service"),
    ("tokenizer", "set the model's `tokenizer` instead"),
    ("dtype", "set the service's `dtype` instead"),
    ("max_model_len", "set the model's `context` instead"),
    ("seed", "set `run.seed` instead"),
    ("enable_prefix_caching", "set `engine.prefix_caching` instead"),
    ("enforce_eager", "set `engine.cuda_graphs` instead"),
    ("max_num_seqs", "set `engine.max_running` instead"),
    ("kv_cache_dtype", "set `engine.kv_dtype` instead"),
    ("gpu_memory_utilization", "set `engine.gpu_memory` instead"),
    ("tensor_parallel_size", "set `parallel.tp` instead"),
    ("pipeline_parallel_size", "set `parallel.pp` instead"),
    ("data_parallel_size", "set `parallel.dp` instead"),
    (
        "logprobs_mode",
        "remove it: log-probs are always those of the distribution that is sampled from",
    ),
    ("load_format", "remove it: weights are loaded from the model's folder"),
    ("distributed_executor_backend", "remove it: Monarch starts the ranks"),
    ("disable_log_stats", "remove it: events.jsonl has the statistics"),
    *(
        (name, "remove it: engines do not sleep, and their memory is counted by PyTorch")
        for name in ("enable_sleep_mode", "enable_cumem_allocator")
    ),
    ("scheduler_cls", "remove it: the runtime uses its own scheduler"),
    ("worker_cls", "remove it: the runtime uses its own worker"),
    *(
        (name, "set `weights = adapter` of the `sync` instead: it decides room for adapters")
        for name in ("max_loras", "max_lora_rank", "max_cpu_loras", "lora_target_modules")
    ),
    ("enable_return_routed_experts", "set `router_replay` of the trainer instead"),
    *(
        (name, f"set `sampling.{name}` instead")
        for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "stop")
    ),
)
"""arguments of vLLM that runtime/forgedsl_runtime/services/vllm/upstream/engine.py sets, and what
decides each, or that it cannot work with"""

SCHEMA = Kind(
    name="service",
    doc="a vLLM engine that samples completions",
    support=(
        Limit(setting="engine.kv_dtype", words=("fp8",), device="cpu",
              instead="on a CPU, remove `engine.kv_dtype`: vLLM's CPU kernels read fp8 KV caches "
              "back inaccurately"),
        Limit(setting="engine.weight_dtype", words=("fp8",), device="cpu",
              instead="on a CPU, remove `engine.weight_dtype`: vLLM's kernel for it needs AMX, "
              "which few CPUs have"),
        *(Limit(setting="engine.max_running", most=most, device=device,
                instead=f"an engine computes at most {most:,} tokens in a step, so it cannot "
                "decode more completions at once: lower it, or use more `replicas`")
          for device, most in BATCHED_TOKENS.items()),
        Limit(setting="parallel.pp",
              instead="use `parallel.tp` to split a model that is too large"),
        Limit(setting="parallel.dp", instead="use `replicas` for more throughput"),
        Limit(setting="hosts",
              instead="an engine must fit on one host; use `replicas` for several hosts"),
    ),
    open=("engine.extra",),
    taken=tuple((f"engine.extra.{name}", why) for name, why in ENGINE_ARGUMENTS),
    settings=(
        *COMMON,
        row("procs", replace(COUNT, auto=True), Derived("tp x pp x dp over hosts"), PLACE,
             "processes per host"),
        row("replicas", replace(COUNT, auto=True), 1, PLACE, "number of engines among which "
            "requests are distributed"),
        row("route", word("least_loaded", "round_robin", "sticky"), "least_loaded", PLACE,
             "how a replica is chosen for a request; sticky: all requests of a prompt go to the "
             "same replica"),
        row("served_by", Type(base="ref", kinds=("service",), optional=True), None, PLACE,
             "service whose engine answers the requests of this one, with the base of its model or "
             "with another adapter; none: an engine of its own"),
        row("parallel.tp", replace(COUNT, auto=True), 1, PLACE, "tensor-parallel degree"),
        row("parallel.pp", COUNT, 1, PLACE, "pipeline-parallel degree"),
        row("parallel.dp", COUNT, 1, PLACE, "data-parallel degree"),
        *SAMPLING,
        row("engine.gpu_memory", replace(POSITIVE_FRACTION, auto=True), AUTO, PLACE,
             "fraction of the GPU's memory that the engine may use"),
        row("engine.prefix_caching", BOOL, True, PLACE, "reuse the KV cache of shared prefixes"),
        row("engine.cuda_graphs", BOOL, True, PLACE, "use CUDA graphs, on a GPU"),
        row("engine.max_running", replace(COUNT, auto=True), AUTO, PLACE,
             "maximum number of completions decoded at once"),
        row("engine.kv_dtype", word("auto", "fp8"), "auto", NUM,
             "dtype of the KV cache; auto: the service's dtype"),
        row("engine.weight_dtype", word("auto", "fp8"), "auto", NUM,
             "dtype of the weights of layers, without embedding and head; fp8 weights are "
             "quantized again at every sync and need a GPU; auto: the service's dtype"),
    ),
)  # fmt: skip


class Vllm(ServiceKind):
    def job(self) -> type[Service]:
        from forgedsl.services.vllm.job import VllmService

        return VllmService

    def lowered(self, placed: PlannedService) -> Service:
        from forgedsl.services.vllm.lowering import lowered

        return lowered(placed)

    def rank(
        self, request: Request, mesh: MeshPlan, others: Mapping[str, RankMemory]
    ) -> RankMemory:
        from forgedsl.services.vllm import memory

        return memory.rank(request, mesh, others)

    def sampling(self, program: Program, decl: Decl) -> SamplingCost:
        from forgedsl.services.vllm import cost

        return cost.sampling(program, decl)


KIND = Vllm(
    name="vllm",
    claim="engine.gpu_memory",
    in_python=True,
    schema=SCHEMA,
    can=frozenset({Capability.SAMPLES, Capability.JUDGES}),
    needs=((Capability.SAMPLES, "sampling.max_tokens", "it samples"),),
    degrees=("tp", "pp", "dp"),
    even=("heads", "ffn", "dense_ffn"),
    measure="sampling.",
    records_routes=True,
    adds_adapters=True,
    process=round(0.8 * GIB),
    cpu_expert_width=32,
    cpu_heads=(32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512),
)
