"""Adapter of torchtitan. Only the modules of this folder use torchtitan.

In: a `Job` model and titan service, a local folder with Hugging Face files. Out: a `TitanModel`,
torchtitan's own model, parallelize function, optimizers, schedulers and checkpoint manager, built
the way torchtitan's trainer builds them. The model does not compute logits: its lm_head calls the
loss with hidden states.

`arch.py` is the part of this adapter that makes torchtitan's model configs.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from forgedsl import surface
from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.sizes.params import stage_layers
from forgedsl.syntax import cache
from forgedsl_runtime.context_parallel import Context
from forgedsl_runtime.services.titan.upstream import draws, experts, lora, value_head
from forgedsl_runtime.services.titan.upstream.arch import (
    HeadFn,
    adapt_config,
    keep_loss_whole,
    model_spec,
    read_model,
)
from forgedsl_runtime.services.titan.upstream.attention import Segments
from forgedsl_runtime.services.titan.upstream.checkpoints import spoilt
from forgedsl_runtime.services.titan.upstream.context import share_rows
from forgedsl_runtime.services.titan.upstream.gathering import gather_tensor
from forgedsl_runtime.services.titan.upstream.router import InF32
from forgedsl_runtime.upstream.inductor import compile_for_any_length, start_compilers

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
"""dtypes of a model in the trainer"""
PUBLISHED = {**DTYPES, "f16": torch.float16}
"""dtypes of published weights"""
SPMD_BACKEND = "partial_dtensor"
OF_ANY_LENGTH = (
    r"L\['x'\]:1", r"L\['positions'\]:1", r"L\['attention_masks'\]",
    r"L\['args'\]\[0\]:1", r"L\['args'\]\[2\]:1", r"L\['args'\]\[1\]",
    r".*\['router'\]\.given:1",
)  # fmt: skip
"""inputs of a layer that change with the batch: the length of a row, the number of segments, the
length of the longest one, and the routes that a router replays. torch.compile takes them as
variables from the first batch on. By default it would compile a layer for the first lengths alone,
and again for others. Marking tensors does not work: FSDP replaces them before each layer. The names
are those of torchtitan's layers, and of the wrapper for recomputation."""


def select_device(device: str) -> None:
    """Tell torchtitan which device to use; call this before anything imports torchtitan. torchtitan
    reads the device type at import and falls back to "cuda" if there is none."""
    if device == "cpu":
        torch._utils._get_available_device_type = lambda: "cpu"


def _components() -> SimpleNamespace:
    """Import torchtitan's parts; call after `select_device`."""
    from torchtitan import config, distributed
    from torchtitan.components import checkpoint, optimizer
    from torchtitan.distributed import activation_checkpoint, utils

    return SimpleNamespace(
        CheckpointManager=checkpoint.CheckpointManager, CommConfig=config.CommConfig,
        CompileConfig=config.CompileConfig, FullAC=activation_checkpoint.FullAC,
        LRSchedulersContainer=optimizer.LRSchedulersContainer,
        OptimizersContainer=optimizer.OptimizersContainer, ParallelDims=distributed.ParallelDims,
        ParallelismConfig=config.ParallelismConfig, ParamGroupConfig=optimizer.ParamGroupConfig,
        SelectiveAC=activation_checkpoint.SelectiveAC, TrainingConfig=config.TrainingConfig,
        dist_utils=utils,
    )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class TitanModel:
    """A built torchtitan model on one rank. `classes` names the torchtitan parts in use."""

    model: nn.Module
    config: Any
    parallel_dims: Any
    adapter: Any
    device: torch.device
    dp_rank: int
    dp_size: int
    context: Context
    """this rank's context-parallel group, whose ranks share rows. `dp_rank` is the number of the
    group: groups have different samples"""
    flat: bool
    """True if attention takes `Segments` of one long row, False if it takes a mask over short
    rows"""
    classes: dict[str, str]
    size: int
    """number of parameters of the whole model; in a pipeline this rank has only some layers"""
    pipeline: Any = None
    lora: spec.Lora | None = None

    def hidden_to(
        self, head: HeadFn, tokens: Tensor, positions: Tensor, attention: Tensor | Segments
    ) -> Any:
        """Run the model on packed rows and return `head(hidden [R, L, H], lm_head weight [V, H],
        shared)`. Under tensor parallelism the weight is this rank's shard, described by `shared`.

        tokens, positions: int64 [R, L]; attention: `Segments` of a flat model (R = 1), else bool
        [R, 1, L, L], True where a query may attend. In a pipeline, `tokens` are the hidden states
        of the stage before, and only the last stage calls `head`; the others return hidden states.
        """
        lm_head: Any = self.model.lm_head
        if lm_head is not None:
            lm_head.head = head
        try:
            return self.model(tokens, positions=positions, attention_masks=attention)
        finally:
            if lm_head is not None:
                lm_head.head = None

    def values(self, hidden: Tensor) -> Tensor:
        """Return the value head's output for hidden states [N, H]; call only in `head` of
        `hidden_to`."""
        value: Any = self.model.value_head
        found: Tensor = value(hidden)
        return found

    def hf_state(self) -> dict[str, Any]:
        """Return this rank's shards of the weights under Hugging Face names; the experts of a
        layer are two entries (`Stacked`). Weights with merged adapters are copies; all others are
        the model's own tensors."""
        return self._named(lora.merged(dict(self.model.state_dict()), self.lora))

    @contextmanager
    def as_base(self) -> Iterator[None]:
        """Let the model compute as a frozen one without adapters; it also counts no tokens of
        experts meanwhile."""
        training = self.model.training
        self.model.eval()
        try:
            with lora.left_out(self.model):
                yield
        finally:
            self.model.train(training)

    def base_state(self) -> dict[str, Any]:
        """Return this rank's shards of the weights that adapters are added to, named as those of
        `hf_state`."""
        return self._named(lora.base(self.model.state_dict()))

    def adapter_state(self) -> dict[str, Tensor]:
        """Return the adapters of this rank's layers whole, f32: A [rank, in], and B [out, rank]
        times alpha / rank, under PEFT's names (a collective)."""
        assert self.lora is not None
        halves = {
            name: gather_tensor(value, torch.float32)
            for name, value in self.model.state_dict().items()
            if name.endswith((lora.A, lora.B))
        }
        return lora.alone(halves, self.lora, self.adapter.published)

    def _named(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        grouped, others = experts.split_experts(weights)
        state: dict[str, Any] = self.adapter.published(others)
        return state | experts.stack_experts(grouped, self.adapter)

    def export_tensors(
        self, dtype: torch.dtype, *, base: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights whole, under the names that they have in files (a collective). With
        `base`, no adapter is merged into them."""
        named = self.base_state() if base else self.hf_state()
        state = {
            name: value.value if isinstance(value, InF32) and value.rounded else value
            for name, value in named.items()
        }
        gathered = (
            part
            for name, value in state.items()
            for part in experts.split(name, gather_tensor(value, dtype))
        )
        for name, found in self.adapter.in_files(gathered):
            yield name, _with_own_storage(found)


def _with_own_storage(value: Tensor) -> Tensor:
    """Return a tensor, copied if it is a view of a larger one, which safetensors cannot store."""
    return value.clone() if value.untyped_storage().nbytes() != value.nbytes else value


def init_distributed(
    device: str,
    rank: int,
    local_rank: int,
    world: int,
    addr: str,
    port: int,
    *,
    offload: bool = False,
) -> SimpleNamespace:
    """Join this service's process group, through torchtitan; `addr` and `port` are those of its
    rendezvous store. With `offload`, a CPU backend is added for tensors in host memory."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR=addr,
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # rank 0 starts no store: there is one at this address
    )
    # The default is the temporary folder, which is removed with the run.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache.folder() / "inductor"))
    select_device(device)
    parts = _components()
    if device != "cpu":
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    # Otherwise the flight recorder would make its folder in the current directory.
    config = parts.CommConfig(trace_buf_size=0)
    parts.dist_utils.init_distributed(config, enable_cpu_backend=offload)
    return parts


def build_model(
    model: spec.Model, service: spec.TitanService, folder: Path, parts: SimpleNamespace
) -> TitanModel:
    """Build the model on this rank, parallelized and with initial (not loaded) weights.

    Raises:
        LaunchError: torchtitan does not have the architecture, or its sizes do not fit.
    """
    parallelism = _parallelism(service.parallel, parts)
    dims = parts.ParallelDims.from_config(parallelism, torch.distributed.get_world_size())
    parts.dist_utils.set_spmd_backend(SPMD_BACKEND)
    dims.build_mesh()
    arch = model_spec(model, folder)
    config = lora.with_adapters(adapt_config(arch.model, model, service), service.lora)
    with _no_trainer():  # as for one stage: torchtitan refuses tied weights in a pipeline
        alone = replace(parallelism, pipeline_parallel_degree=1)
        config.update_from_config(config=SimpleNamespace(parallelism=alone))
    keep_loss_whole(config)
    # FSDP computes in the service's dtype; the stored weights of a trained model may have another.
    store = DTYPES[_kept(service.optimizer) if service.optimizer is not None else service.dtype]
    with torch.device("meta"), _default_dtype(store):
        module = config.build()
        if service.value_head:
            value_head.attach(module, config.dim)
    initial = draws.initial(module)
    context = share_rows(module, dims, service.parallel)
    whole_model = {name: value.shape for name, value in module.named_parameters()}
    device = torch.device("cpu" if service.mesh.device == "cpu" else torch.cuda.current_device())
    pipeline = _split(module, dims, model, service, folder, device)
    module = arch.parallelize_fn(
        module,
        parallel_dims=dims,
        training=parts.TrainingConfig(
            dtype=_name(store),
            mixed_precision_param=_name(DTYPES[service.dtype]),
            seq_len=service.batch.seq_len,
            enable_cpu_offload=service.offload,
        ),
        parallelism=parallelism,
        compile_config=parts.CompileConfig(enable=service.compile),
        ac_config=_activation_checkpoint(service.activation_checkpoint, parts),
        dump_folder="",
    )
    _start(module, model, service, device, whole_model, initial)
    if pipeline is not None:
        pipeline.copy_tied(module)
        config = replace(config, enable_weight_tying=module.enable_weight_tying)
    built = _wrap(module, config, dims, context, arch, folder, device, service.lora)
    built.size, built.pipeline = sum(shape.numel() for shape in whole_model.values()), pipeline
    return built


def _start(
    module: Any, model: spec.Model, service: spec.TitanService, device: torch.device,
    shapes: dict[str, torch.Size], initial: list[draws.Initial],
) -> None:  # fmt: skip
    """Initialize the weights, and set up hooks for the forward and backward passes. `shapes` and
    `initial` are of the whole model, before it is split into stages and sharded."""
    torch.manual_seed(model.source.seed if isinstance(model.source, spec.RandomModel) else 0)
    module.to_empty(device="cpu" if service.offload else device)
    draws.initialize(module, initial, device, offload=service.offload)
    lora.draw(module, shapes)
    value_head.start(module)
    _plain_sum_reduction(module)
    if service.compile:
        given = os.environ.get("TORCH_COMPILE_DYNAMIC_SOURCES")
        torch.compiler.config.dynamic_sources = ",".join(
            [*OF_ANY_LENGTH, *([given] if given else [])]
        )
        compile_for_any_length()
        if device.type == "cuda":
            start_compilers()


def _split(
    module: Any, dims: Any, model: spec.Model, service: spec.TitanService, folder: Path,
    device: torch.device,
) -> Any:  # fmt: skip
    """Return this rank's place in a pipeline, or None; the module keeps only the layers of its
    stage."""
    if service.parallel.pp == 1:
        return None
    # Importing torch's pipelining is slow.
    from forgedsl_runtime.services.titan.upstream import pipeline as titan_pipeline

    layers = stage_layers(read_model(model, folder)[1], service.parallel.pp)
    return titan_pipeline.split(
        module, dims, layers, width=module.config.dim, dtype=DTYPES[service.dtype], device=device
    )  # fmt: skip


def _wrap(
    module: nn.Module, config: Any, dims: Any, context: Context, arch: Any, folder: Path,
    device: torch.device, adapters: spec.Lora | None,
) -> TitanModel:  # fmt: skip
    batch_mesh = dims.get_optional_mesh("batch")
    return TitanModel(
        model=module,
        config=config,
        parallel_dims=dims,
        adapter=arch.state_dict_adapter(config, str(folder)),
        device=device,
        dp_rank=batch_mesh.get_local_rank() // context.size if batch_mesh is not None else 0,
        dp_size=batch_mesh.size() // context.size if batch_mesh is not None else 1,
        context=context,
        flat=device.type != "cpu",
        size=0,
        classes={
            "model": _torchtitan_name(type(module)),
            "parallelize": f"{arch.parallelize_fn.__module__}.{arch.parallelize_fn.__qualname__}",
        },
        lora=adapters,
    )


def build_checkpointer(
    titan: TitanModel,
    *,
    folder: Path,
    source: Path | None,
    optimizers: Any,
    schedulers: Any,
    states: dict[str, Any],
    parts: SimpleNamespace,
) -> Any:
    """Build torchtitan's checkpoint manager for `folder`; `source` holds initial safetensors. It
    removes no checkpoints: the controller removes old ones (`keep_newest`) when a new one is
    complete."""
    config = parts.CheckpointManager.Config(
        enable=True, folder=folder.name, interval=2**31,
        initial_load_path=str(source) if source else None, initial_load_in_hf=source is not None,
        last_save_model_only=False, keep_latest_k=0,
    )  # fmt: skip
    manager = config.build(
        dataloader=None, model_parts=[titan.model], optimizers=optimizers, lr_schedulers=schedulers,
        states=states, sd_adapter=titan.adapter, base_folder=str(folder.parent),
    )  # fmt: skip
    titan.classes["checkpoint"] = _class_name(manager)
    return manager


def load_hf_weights(titan: TitanModel, folder: Path) -> None:
    """Load the safetensors of `folder` into a model that is never saved (a frozen reference)."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    state = titan.adapter.to_hf(dict(titan.model.state_dict()))
    load(state, storage_reader=HuggingFaceStorageReader(str(folder)))
    titan.model.load_state_dict(titan.adapter.from_hf(state), strict=False)


def checkpoint_weights(
    model: spec.Model, service: spec.TitanService, folder: Path, checkpoint: Path
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the whole weights of a checkpoint under Hugging Face names, in the model's dtype, and
    those of its value head. Call in a process that has not used torchtitan for another device. No
    process group is needed.

    Raises:
        LaunchError: the checkpoint cannot be read.
    """
    read = _read_checkpoint(model, service, folder, checkpoint)
    kept = PUBLISHED[model.dtype]
    weights = {
        name: value if name in read.buffers else value.to(kept)
        for name, value in lora.merged(read.state, service.lora).items()
    }
    return {name: _with_own_storage(value) for name, value in read.to_hf(weights).items()}, {
        name: read.state[f"{value_head.NAME}.{name}"].to(kept) for name in read.head
    }


def checkpoint_adapters(
    model: spec.Model, service: spec.TitanService, folder: Path, checkpoint: Path
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the adapters of a checkpoint, f32: A [rank, in] and B [out, rank] by the Hugging Face
    name of their layer. Otherwise like `checkpoint_weights`."""
    read = _read_checkpoint(model, service, folder, checkpoint)
    return lora.peft_layers(read.state, read.to_hf)


class _Read(NamedTuple):
    """What `_read_checkpoint` returns."""

    state: dict[str, Tensor]
    """whole tensors under torchtitan's names"""
    to_hf: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    """maps torchtitan's names and layouts to those of Hugging Face"""
    head: tuple[str, ...]
    """names of the tensors of the value head"""
    buffers: frozenset[str]
    """names in `state` of tensors that are not trained and keep their dtype"""


def _read_checkpoint(
    model: spec.Model, service: spec.TitanService, folder: Path, checkpoint: Path
) -> _Read:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    select_device("cpu")
    arch = model_spec(model, folder)
    config = lora.with_adapters(adapt_config(arch.model, model, service), service.lora)
    single = _parallelism(spec.TitanParallel(), _components())
    with _no_trainer():
        config.update_from_config(config=SimpleNamespace(parallelism=single))
    with torch.device("meta"):
        module = config.build()
        if service.value_head:
            value_head.attach(module, config.dim)
    dtype = PUBLISHED[model.dtype] if service.lora is None else torch.float32
    buffers = frozenset(name for name, _ in module.named_buffers())
    state = {
        name: torch.empty(
            value.shape,
            dtype=dtype if value.is_floating_point() and name not in buffers else value.dtype,
        )
        for name, value in module.state_dict().items()
    }
    try:
        load(state, checkpoint_id=str(checkpoint), no_dist=True)
    except (CheckpointException, EOFError, OSError, pickle.UnpicklingError) as error:
        failures = getattr(error, "failures", {0: (error, None)})
        cause = next(iter(failures.values()))[0]
        raise LaunchError(
            f"cannot read the checkpoint {checkpoint}: "
            f"{spoilt(checkpoint) or f'{type(cause).__name__}: {cause}'}; choose another "
            f"checkpoint with {surface.option('--step')}"
        ) from error
    to_hf = arch.state_dict_adapter(config, str(folder)).to_hf
    head = tuple(value_head.state(module))
    return _Read(state=state, to_hf=to_hf, head=head, buffers=buffers)


def clip_grad_norm(titan: TitanModel, max_norm: float, parts: SimpleNamespace) -> Tensor:
    """Clip gradients to `max_norm` over all ranks; return the norm before clipping."""
    weights = list(titan.model.parameters())
    clip = partial(parts.dist_utils.clip_grad_norm_, ep_enabled=titan.parallel_dims.ep_enabled)
    if titan.pipeline is None:
        norm: Tensor = clip(weights, max_norm, foreach=True)
        return norm
    counted = titan.pipeline.add_up_tied(titan.model)
    own = [weight for weight in weights if all(weight is not other for other in counted)]
    norm = clip(own, max_norm, foreach=True, pp_mesh=titan.parallel_dims.get_mesh("pp"))
    torch.nn.utils.clip_grads_with_norm_(counted, max_norm, norm, foreach=True)
    return norm


# ---- pieces


@contextmanager
def _no_trainer() -> Iterator[None]:
    """Replace torchtitan's Trainer, which its model configs import for one isinstance check. It
    would import datasets, pandas, torchao and TensorBoard: 1121 modules that no rank uses. Measured
    on one slow core: 114 MiB and 1.2 s per rank, 3.8 s without cached byte code."""
    name = "torchtitan.trainer"
    stub: Any = ModuleType(name)
    stub.Trainer = type("Trainer", (), {"Config": type("Config", (), {})})
    used = sys.modules.setdefault(name, stub)
    try:
        yield
    finally:
        if used is stub:
            del sys.modules[name]


def _parallelism(degrees: spec.TitanParallel, parts: SimpleNamespace) -> Any:
    """FSDP shards weights over dp_shard x cp. `context.py` splits rows, so torchtitan's own context
    parallelism stays off."""
    return parts.ParallelismConfig(
        data_parallel_replicate_degree=degrees.dp_replicate,
        data_parallel_shard_degree=degrees.dp_shard * degrees.cp,
        tensor_parallel_degree=degrees.tp,
        pipeline_parallel_degree=degrees.pp,
        expert_parallel_degree=degrees.ep,
        spmd_backend=SPMD_BACKEND,
    )


def _kept(opt: spec.Optimizer) -> str:
    """Return the dtype of stored weights and gradients."""
    return "bf16" if opt.precision == "bf16" else "f32"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _activation_checkpoint(mode: str, parts: SimpleNamespace) -> Any:
    if mode == "none":
        return None
    return {"selective": _selective(parts.SelectiveAC), "full": parts.FullAC}[mode].Config()


def _selective(theirs: Any) -> Any:
    """Return torchtitan's selective recomputation, which also keeps the results of our attention,
    as it does those of torch's."""

    class Selective(theirs):
        @dataclass(kw_only=True, slots=True)
        class Config(theirs.Config):
            pass

        def get_save_ops(self) -> set[Any]:
            return {*super().get_save_ops(), torch.ops.forgedsl.packed_attention.default}

    return Selective


def _plain_sum_reduction(module: nn.Module) -> None:
    """Reduce gradients by plain sums: Gloo has no PREMUL_SUM, and denominators are global
    already."""
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_force_sum_reduction_for_comms(True)


def _default_dtype(dtype: torch.dtype) -> Any:
    from torchtitan.tools.utils import set_default_dtype

    return set_default_dtype(dtype)


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _torchtitan_name(cls: type) -> str:
    """Return the torchtitan class behind FSDP's dynamic subclass."""
    for base in cls.__mro__:
        if base.__module__.startswith("torchtitan."):
            return f"{base.__module__}.{base.__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"
