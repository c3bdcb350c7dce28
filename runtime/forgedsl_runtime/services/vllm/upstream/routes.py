"""Routes of sampled tokens: which experts each layer chose for them.

    routers --capture--> rows of this step --record--> table by slot of the KV cache
                            a request finishes --read--> its routes, through its blocks

The table has a row for each slot of the KV cache, and a slot's route lives as long as its keys and
values. So tokens from the prefix cache have routes. A context that is computed anew, after new
weights or a preemption, has the routes of its last computation. A step costs one copy on the
device. A finished request costs one gather, which no step waits for.

vLLM's own recorder (`enable_return_routed_experts`) keeps routes by block hash in host memory. It
needs vLLM's newer runner, which CPUs do not have, and excludes the fast path of `scheduling.py`.
vLLM loads this module in the process of an engine, by the name of its worker class.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.platforms import current_platform

from forgedsl.errors import LaunchError
from forgedsl_runtime.routes import Routes, missing_route, route_dtype

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from forgedsl_runtime.services.vllm.upstream.worker import (  # type: ignore[assignment]
        EngineWorker as Worker,
    )


@dataclass(slots=True)
class PendingRoutes:
    """Routes on their way to host memory."""

    on_host: torch.Tensor
    copied: Any = None
    """event after the copy; None on a CPU"""

    def wait(self) -> Routes:
        """Return the routes of all tokens but the last: [tokens - 1, layers, active]."""
        if self.copied is not None:
            self.copied.synchronize()
        found: Routes = self.on_host.numpy()
        return found


class RouteRecorder:
    """Keeps the routes of all tokens in the KV cache of one engine."""

    def __init__(self, model: torch.nn.Module, config: Any, device: torch.device) -> None:
        sizes = config.model_config
        experts, active = sizes.get_num_experts(), sizes.get_num_experts_per_tok()
        layers, most = sizes.get_total_num_hidden_layers(), config.scheduler_config
        dtype = route_dtype(experts)
        self._missing = missing_route(dtype)
        self._dtype = torch.from_numpy(np.zeros(0, dtype)).dtype
        self._device = device
        self._step = torch.zeros(
            (most.max_num_batched_tokens, layers, active), dtype=torch.int32, device=device
        )
        """experts of the tokens of the running step"""
        self._table: torch.Tensor | None = None
        self._bind(model)

    def _bind(self, model: torch.nn.Module) -> None:
        """Let every router report what it chooses.

        Raises:
            LaunchError: a layer's kernel chooses the experts itself.
        """
        for module in model.modules():
            if not isinstance(module, MoERunner):
                continue
            if module._quant_method.is_monolithic or not isinstance(module.router, BaseRouter):
                raise LaunchError(
                    f"layer {module.layer_name} of the engine chooses experts inside its kernel, "
                    "so its choice cannot be recorded: set `router_replay = false` in the trainer"
                )
            module.router.set_capture_fn(partial(self._capture, module.layer_id))

    def _capture(self, layer: int, chosen: torch.Tensor) -> None:
        self._step[: len(chosen), layer] = chosen

    def allocate(self, slots: int) -> None:
        """Make the table for a KV cache of `slots` slots, one for each token."""
        shape = (slots, *self._step.shape[1:])
        self._table = torch.full(shape, self._missing, dtype=self._dtype, device=self._device)

    def record(self, slots: torch.Tensor) -> None:
        """Store the routes of this step's tokens; `slots` int64 [tokens] are their places in the KV
        cache."""
        assert self._table is not None
        self._table.index_copy_(0, slots, self._step[: len(slots)].to(self._dtype))

    def read(self, blocks: list[int], block_size: int, tokens: int) -> PendingRoutes:
        """Return the routes of the first `tokens` tokens of a request with these blocks."""
        assert self._table is not None
        by_block = self._table.view(-1, block_size, *self._table.shape[1:])
        wanted = blocks[: -(-tokens // block_size)]
        index = torch.tensor(wanted, dtype=torch.int64, device="cpu")
        found = by_block[index.to(self._device, non_blocking=True)].flatten(0, 1)[:tokens]
        if self._device.type == "cpu":
            return PendingRoutes(found)
        on_host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        on_host.copy_(found, non_blocking=True)
        copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        return PendingRoutes(on_host, copied)


class RecordingWorker(Worker):
    """vLLM's worker, with a `RouteRecorder`."""

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        done = super().load_model(*args, **kwargs)
        assert self.device is not None
        self.recorder = RouteRecorder(self.get_model(), self.vllm_config, self.device)
        return done

    def initialize_from_config(self, *args: Any, **kwargs: Any) -> Any:
        done = super().initialize_from_config(*args, **kwargs)
        cache = self.vllm_config.cache_config
        assert cache.num_gpu_blocks is not None
        self.recorder.allocate(cache.num_gpu_blocks * cache.block_size)
        return done

    def execute_model(self, scheduler_output: Any) -> Any:
        done = super().execute_model(scheduler_output)
        if count := scheduler_output.total_num_scheduled_tokens:
            with torch.inference_mode():
                self.recorder.record(self._slots()[:count])
        return done

    def _slots(self) -> torch.Tensor:
        """Return the KV cache slots of the tokens of the last step."""
        runner: Any = self.model_runner
        if self.use_v2_model_runner:
            found: torch.Tensor = runner.block_tables.slot_mappings[0]
        else:
            found = runner.input_batch.block_table[0].slot_mapping.gpu
        return found

    def route_recorder(self) -> RouteRecorder:
        return self.recorder
