"""torchtitan: the one file that touches it.

In: a `Job` model and titan service, a local folder with Hugging Face files. Out: a `TitanModel`,
torchtitan's own model, parallelize function, optimizers, schedulers and checkpoint manager, built
the way torchtitan's trainer builds them, with the lm_head left to the loss.

Two changes are made to torchtitan's model config before it is built, both through its own
configuration system: the inner attention (SDPA over a block-causal mask; FlexAttention has no CPU
backward) and the lm_head (`LossHead`, which hands hidden states and weight to the loss inside its
own forward, so that FSDP's hooks around lm_head apply to the loss as they do to logits).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec


def select_device(device: str) -> None:
    """Tell torchtitan which device to use; call before anything imports torchtitan.

    torchtitan reads the device type at import and falls back to "cuda" where there is none.
    """
    if device == "cpu":
        torch._utils._get_available_device_type = lambda: "cpu"


HeadFn = Callable[[Tensor, Tensor], Any]


def _components() -> SimpleNamespace:
    """torchtitan's parts, imported after `select_device`."""
    from torchtitan import config, distributed
    from torchtitan.components import checkpoint, optimizer
    from torchtitan.distributed import activation_checkpoint, utils

    return SimpleNamespace(
        CheckpointManager=checkpoint.CheckpointManager,
        CommConfig=config.CommConfig,
        CompileConfig=config.CompileConfig,
        FullAC=activation_checkpoint.FullAC,
        LRSchedulersContainer=optimizer.LRSchedulersContainer,
        OptimizersContainer=optimizer.OptimizersContainer,
        ParallelDims=distributed.ParallelDims,
        ParallelismConfig=config.ParallelismConfig,
        ParamGroupConfig=optimizer.ParamGroupConfig,
        SelectiveAC=activation_checkpoint.SelectiveAC,
        TrainingConfig=config.TrainingConfig,
        dist_utils=utils,
    )


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
    classes: dict[str, str]

    def hidden_to(self, head: HeadFn, tokens: Tensor, positions: Tensor, mask: Tensor) -> Any:
        """Run the model on packed rows and return `head(hidden [R, L, H], lm_head weight [V, H])`.

        tokens, positions: int64 [R, L]; mask: bool [R, 1, L, L], True where a query may attend.
        """
        lm_head = self.model.lm_head
        lm_head.head = head
        try:
            return self.model(tokens, positions=positions, attention_masks=mask)
        finally:
            lm_head.head = None

    def hf_state(self) -> dict[str, Tensor]:
        """Weights under their Hugging Face names, gathered from all ranks (a collective)."""
        with torch.no_grad():
            state = self.adapter.to_hf(dict(self.model.state_dict()))
            return {
                name: value.full_tensor() if hasattr(value, "full_tensor") else value
                for name, value in state.items()
            }


def init_distributed(device: str, rank: int, local_rank: int, world: int, addr: str, port: int):
    """Join this service's process group through torchtitan."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR=addr,
        MASTER_PORT=str(port),
    )
    select_device(device)
    parts = _components()
    if device != "cpu":
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    parts.dist_utils.init_distributed(parts.CommConfig())
    return parts


def build_model(
    model: spec.Model, service: spec.TitanService, folder: Path, parts: SimpleNamespace
) -> TitanModel:
    """Build the model on this rank, parallelized and with initial (not loaded) weights.

    Raises:
        LaunchError: the architecture is not one torchtitan has, or its sizes do not fit.
    """
    parallelism = parts.ParallelismConfig(
        data_parallel_replicate_degree=service.parallel.dp_replicate,
        data_parallel_shard_degree=service.parallel.dp_shard,
        tensor_parallel_degree=service.parallel.tp,
        context_parallel_degree=service.parallel.cp,
        pipeline_parallel_degree=service.parallel.pp,
        expert_parallel_degree=service.parallel.ep,
        spmd_backend="partial_dtensor",
    )
    world = torch.distributed.get_world_size()
    dims = parts.ParallelDims.from_config(parallelism, world)
    parts.dist_utils.set_spmd_backend("partial_dtensor")
    dims.build_mesh()
    model_spec = _model_spec(model, folder)
    config = _adapt_config(model_spec.model, model, service)
    config.update_from_config(config=SimpleNamespace(parallelism=parallelism))
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[service.dtype]
    trains = service.optimizer is not None
    store = torch.float32 if trains else dtype
    name = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
    with torch.device("meta"), _default_dtype(store):
        module = config.build()
    module = model_spec.parallelize_fn(
        module,
        parallel_dims=dims,
        training=parts.TrainingConfig(
            dtype=name[store], mixed_precision_param=name[dtype], seq_len=service.batch.seq_len
        ),
        parallelism=parallelism,
        compile_config=parts.CompileConfig(enable=service.compile),
        ac_config=_activation_checkpoint(service.activation_checkpoint, parts),
        dump_folder="",
    )
    device = torch.device("cpu" if service.mesh.device == "cpu" else torch.cuda.current_device())
    module.to_empty(device=device)
    torch.manual_seed(model.source.seed if isinstance(model.source, spec.RandomModel) else 0)
    with torch.no_grad():
        module.init_states(buffer_device=None)
    _plain_sum_reduction(module)
    batch_mesh = dims.get_optional_mesh("batch")
    return TitanModel(
        model=module,
        config=config,
        parallel_dims=dims,
        adapter=model_spec.state_dict_adapter(config, str(folder)),
        device=device,
        dp_rank=batch_mesh.get_local_rank() if batch_mesh is not None else 0,
        dp_size=batch_mesh.size() if batch_mesh is not None else 1,
        classes={
            "model": _torchtitan_name(type(module)),
            "parallelize": f"{model_spec.parallelize_fn.__module__}."
            f"{model_spec.parallelize_fn.__qualname__}",
        },
    )


def build_optimizer(titan: TitanModel, opt: spec.Optimizer, steps: int, parts: SimpleNamespace):
    """torchtitan's optimizer and learning-rate containers for `opt`."""
    optimizers = parts.OptimizersContainer.Config(
        param_groups=[
            parts.ParamGroupConfig(
                pattern=r".*",
                optimizer_name={"adamw": "AdamW", "adam": "Adam"}[opt.kind],
                optimizer_kwargs={
                    "lr": opt.lr,
                    "betas": tuple(opt.betas),
                    "eps": opt.eps,
                    "weight_decay": opt.weight_decay,
                },
            )
        ],
        implementation="fused",
    ).build(model_parts=[titan.model])
    schedulers = parts.LRSchedulersContainer.Config(
        warmup_steps=opt.warmup,
        decay_ratio=0.0 if opt.decay == "none" else None,
        decay_type="linear" if opt.decay == "none" else opt.decay,
    ).build(optimizers=optimizers, training_steps=steps)
    titan.classes["optimizer"] = _class_name(optimizers)
    titan.classes["scheduler"] = _class_name(schedulers)
    return optimizers, schedulers


def build_checkpointer(
    titan: TitanModel,
    *,
    folder: Path,
    source: Path | None,
    keep: int,
    optimizers: Any,
    schedulers: Any,
    states: dict[str, Any],
    parts: SimpleNamespace,
):
    """torchtitan's checkpoint manager over `folder`; `source` holds initial safetensors."""
    config = parts.CheckpointManager.Config(
        enable=True,
        folder=folder.name,
        interval=2**31,
        initial_load_path=str(source) if source else None,
        initial_load_in_hf=source is not None,
        last_save_model_only=False,
        keep_latest_k=keep,
    )
    manager = config.build(
        dataloader=None,
        model_parts=[titan.model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states=states,
        sd_adapter=titan.adapter,
        base_folder=str(folder.parent),
    )
    titan.classes["checkpoint"] = _class_name(manager)
    return manager


def load_hf_weights(titan: TitanModel, folder: Path) -> None:
    """Load safetensors of `folder` into a model that is never saved (a frozen reference)."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    state = titan.adapter.to_hf(dict(titan.model.state_dict()))
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)))
    titan.model.load_state_dict(titan.adapter.from_hf(state), strict=False)


def clip_grad_norm(titan: TitanModel, max_norm: float, parts: SimpleNamespace) -> Tensor:
    """Clip gradients to `max_norm` over all ranks; returns the norm before clipping."""
    return parts.dist_utils.clip_grad_norm_(list(titan.model.parameters()), max_norm, foreach=True)


# ---- pieces


def _model_spec(model: spec.Model, folder: Path) -> Any:
    """torchtitan's ModelSpec for the model's architecture."""
    config_file = folder / "config.json"
    if model.arch is not None and model.arch.size is not None:
        return _registered(model.arch.family, model.arch.size)
    if model.arch is not None:
        return _qwen3(model.arch.family, dict(model.arch.dims), model.context or 4096)
    if not config_file.exists():
        raise LaunchError(f"{folder.name} has no config.json and the model names no architecture")
    hf = json.loads(config_file.read_text())
    rope = hf.get("rope_parameters") or {}
    dims = {
        "layers": hf["num_hidden_layers"],
        "hidden": hf["hidden_size"],
        "heads": hf["num_attention_heads"],
        "kv_heads": hf["num_key_value_heads"],
        "head_dim": hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"],
        "ffn": hf["intermediate_size"],
        "vocab": hf["vocab_size"],
        "rope_theta": rope.get("rope_theta", hf.get("rope_theta", 1_000_000.0)),
        "tied": hf.get("tie_word_embeddings", False),
    }
    return _qwen3(hf["model_type"], dims, model.context or hf["max_position_embeddings"])


def _registered(family: str, size: str) -> Any:
    from importlib import import_module

    try:
        registry = import_module(f"torchtitan.models.{family}").model_registry
        return registry(size)
    except (ImportError, KeyError) as error:
        raise LaunchError(f'torchtitan has no model {family}("{size}")') from error


def _qwen3(family: str, dims: dict[str, Any], context: int) -> Any:
    """A dense Qwen3 of explicit sizes, from torchtitan's own builders."""
    from torchtitan.models import qwen3
    from torchtitan.models.common import CosSinRoPE, Embedding, Linear

    if family != "qwen3":
        raise LaunchError(f'no explicit sizes for architecture "{family}"; qwen3 has them')
    hidden, vocab, head_dim = dims["hidden"], dims["vocab"], dims["head_dim"]
    tied = bool(dims.get("tied", True))
    config = qwen3.Qwen3Model.Config(
        vocab_size=vocab,
        dim=hidden,
        norm=qwen3._qwen3_norm(hidden),
        enable_weight_tying=tied,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab,
            embedding_dim=hidden,
            param_init=qwen3._EMBEDDING_SKIP_INIT if tied else qwen3._EMBEDDING_INIT,
        ),
        lm_head=Linear.Config(
            in_features=hidden, out_features=vocab, param_init=qwen3._LINEAR_INIT
        ),
        layers=qwen3._build_qwen3_layers(
            n_layers=dims["layers"],
            dim=hidden,
            n_heads=dims["heads"],
            n_kv_heads=dims["kv_heads"],
            head_dim=head_dim,
            hidden_dim=dims["ffn"],
            attn_backend="flex",
            rope=CosSinRoPE.Config(
                dim=head_dim,
                max_seq_len=context,
                theta=float(dims.get("rope_theta", 1_000_000.0)),
            ),
        ),
    )
    spec_ = qwen3.model_registry("0.6B")
    return dataclasses.replace(spec_, flavor="custom", model=config)


def _adapt_config(config: Any, model: spec.Model, service: spec.TitanService) -> Any:
    """Our attention and lm_head in torchtitan's model config; RoPE sized to the context."""
    classes = _module_classes()
    context = model.context or config.max_seq_len
    if service.batch.seq_len > config.max_seq_len:
        raise LaunchError(
            f"batch.seq_len = {service.batch.seq_len} exceeds the model's context "
            f"of {config.max_seq_len} tokens"
        )
    for layer in config.layers:
        layer.attention.inner_attention = classes.attention.Config()
        layer.attention.rope = dataclasses.replace(layer.attention.rope, max_seq_len=context)
    head = config.lm_head
    config.lm_head = classes.loss_head.Config(
        **{f.name: getattr(head, f.name) for f in dataclasses.fields(head)}
    )
    return config


def _module_classes() -> SimpleNamespace:
    """Subclasses of torchtitan modules; made once, after torchtitan knows its device."""
    from torchtitan.models.common.linear import Linear
    from torchtitan.protocols.module import Module

    class BlockCausalAttention(Module):
        """Scaled dot-product attention under a boolean [R, 1, L, L] mask."""

        @dataclass(kw_only=True, slots=True)
        class Config(Module.Config):
            pass

        def __init__(self, config: Config) -> None:
            super().__init__()

        def forward(  # the TP plan looks for these argument names
            self, q_BLNH, k_BLNH, v_BLNH, attention_masks=None, *, scale=None, enable_gqa=False
        ):
            out = F.scaled_dot_product_attention(
                q_BLNH.transpose(1, 2),
                k_BLNH.transpose(1, 2),
                v_BLNH.transpose(1, 2),
                attn_mask=attention_masks,
                scale=scale,
                enable_gqa=enable_gqa,
            )
            return out.transpose(1, 2)

    class LossHead(Linear):
        """lm_head that computes `head(hidden, weight)` where one is set, else logits."""

        @dataclass(kw_only=True, slots=True)
        class Config(Linear.Config):
            pass

        head: HeadFn | None = None

        def forward(self, input: Tensor) -> Any:
            return super().forward(input) if self.head is None else self.head(input, self.weight)

    return SimpleNamespace(attention=BlockCausalAttention, loss_head=LossHead)


def _activation_checkpoint(mode: str, parts: SimpleNamespace) -> Any:
    if mode == "none":
        return None
    return {"selective": parts.SelectiveAC, "full": parts.FullAC}[mode].Config()


def _plain_sum_reduction(module: nn.Module) -> None:
    """Gloo has no PREMUL_SUM: reduce gradients by plain sums (denominators are global already)."""
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
    """The torchtitan class behind FSDP's dynamic subclass."""
    for base in cls.__mro__:
        if base.__module__.startswith("torchtitan."):
            return f"{base.__module__}.{base.__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"
