"""Pipeline parallelism: a model split by layers over ranks, with torch's stages and schedules.

    model --split--> the layers of this rank
    microbatches --Pipeline.run--> first stage -> hidden states -> ... -> last stage: the loss

Every stage packs the same samples, so each knows the shapes of all microbatches, and only hidden
states and their gradients are sent. torch's stage allocates all its receive buffers at once, of one
shape, for a fixed number of microbatches. Here a rank builds its stage again for each pass. Each
buffer has the shape of its microbatch; it is allocated when the microbatch is received, and freed
after its backward pass. If embedding and lm_head share a weight, the first and the last stage keep
it, and its gradients are summed before each update. Used only by `model.py`, which wraps
torchtitan; import it only if there is a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining._utils import extract_tensor_meta
from torch.distributed.pipelining.schedules import _batch_p2p, _wait_batch_p2p
from torch.distributed.pipelining.stage import _RecvInfo

from forgedsl_runtime.services.titan.upstream import value_head

Shape = tuple[int, int]
"""rows and row length of a microbatch"""
Call = Callable[[int, Any], Tensor]
"""runs the stage's layers: (number of a microbatch, received hidden states) -> output"""


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """This rank's place in its pipeline."""

    group: dist.ProcessGroup
    stage: int
    stages: int
    width: int
    dtype: torch.dtype
    device: torch.device
    ends: dist.ProcessGroup | None
    """group of the first and last rank, if they share a weight and this rank is one of them"""

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    def run(self, model: nn.Module, shapes: Sequence[Shape], call: Call, *, train: bool) -> None:
        """Run all microbatches through the pipeline. `call` of the last stage returns the loss;
        with `train`, gradients are computed."""
        stage = _Stage(self, model, shapes, call)
        if train:
            # With fewer microbatches than stages, all are in flight: GPipe and 1F1B are then the
            # same.
            kind: Any = ScheduleGPipe if len(shapes) < self.stages else Schedule1F1B
            schedule = kind(stage, len(shapes), loss_fn=_given, scale_grads=False)
            stage.has_backward = True
            targets = [None] * len(shapes) if self.is_last else None
            schedule._step_microbatches(target_mbs=targets, return_outputs=False)
        else:
            stage.run_forward()
            # without this, FSDP keeps gathered weights, which the next update would not change
            for part in model.modules():
                if isinstance(part, FSDPModule):
                    part.reshard()

    def broadcast_from_last(self, found: Any) -> Any:
        """Broadcast the last stage's object to all stages."""
        box = [found]
        dist.broadcast_object_list(box, group_src=self.stages - 1, group=self.group,
                                   device=self.device)  # fmt: skip
        return box[0]

    def collect_on_first(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Collect the tensors of all stages in the first stage's host memory; they are sent one at
        a time."""
        told: list[Any] = [None] * self.stages
        mine = {name: (value.shape, value.dtype) for name, value in state.items()}
        dist.all_gather_object(told, mine, group=self.group)
        seen = set(told[0])
        for stage, names in enumerate(told):
            for name, (shape, dtype) in names.items():
                if name in seen:
                    continue
                seen.add(name)
                if stage == self.stage:
                    dist.send(state[name].to(self.device), group=self.group, group_dst=0)
                elif self.is_first:
                    value = torch.empty(shape, dtype=dtype, device=self.device)
                    dist.recv(value, group=self.group, group_src=stage)
                    state[name] = value.cpu()
        return state

    def add_up_tied(self, model: Any) -> list[nn.Parameter]:
        """Sum the gradients of the shared weight on both ends. Return the weights to leave out of
        this rank's gradient norm, since another rank counts them."""
        weight = model.tok_embeddings.weight if self.ends is not None else None
        if weight is None or not weight.requires_grad:
            return []
        if weight.grad is None:  # a loss that reads only a value head does not use the lm_head
            weight.grad = torch.zeros_like(weight)
        with torch.no_grad():
            dist.all_reduce(_local(weight.grad), group=self.ends)
        return [weight] if self.is_last else []

    def copy_tied(self, model: Any) -> None:
        """Copy the shared weight from the last stage to the first."""
        if self.ends is not None:
            with torch.no_grad():
                dist.broadcast(_local(model.tok_embeddings.weight), group_src=1, group=self.ends)


def split(
    module: Any, dims: Any, layers: Sequence[int], *, width: int, dtype: torch.dtype,
    device: torch.device,
) -> Pipeline:  # fmt: skip
    """Keep only this rank's layers of a whole model on the meta device; `layers` is their number
    per stage. If embedding and lm_head share a weight, the last stage keeps the embedding module
    too, but does not run it: the weight then has the same name in checkpoints and optimizer states
    as in the whole model.
    """
    mesh = dims.get_mesh("pp")
    group, stage, stages = mesh.get_group(), mesh.get_local_rank(), mesh.size()
    is_first, is_last = stage == 0, stage == stages - 1
    tied = bool(module.enable_weight_tying)
    begin = sum(layers[:stage])
    for name in list(module.layers):
        if not begin <= int(name) < begin + layers[stage]:
            del module.layers[name]
    if is_last and tied:
        module.tok_embeddings.forward = _given
    elif not is_first:
        module.tok_embeddings = None
    if not is_last:
        module.norm = module.lm_head = None
        module.enable_weight_tying = False
        if hasattr(module, value_head.NAME):
            delattr(module, value_head.NAME)
    return Pipeline(
        group=group, stage=stage, stages=stages, width=width, dtype=dtype, device=device,
        ends=_ends(group) if tied else None,
    )  # fmt: skip


def _ends(group: dist.ProcessGroup) -> dist.ProcessGroup | None:
    """Make the group of both ends of this rank's pipeline; a collective call on all ranks."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, dist.get_process_group_ranks(group))
    mine = None
    for ranks in sorted({tuple(each) for each in found}):
        made: Any = dist.new_group([ranks[0], ranks[-1]])
        if dist.get_rank() in (ranks[0], ranks[-1]):
            mine = made
    return mine


def _local(value: Any) -> Tensor:
    local: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return local


def _given(value: Tensor, *_: Any) -> Tensor:
    return value


class _LazyDict(dict[int, Any]):
    """A dict that makes missing values."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: int) -> Any:
        self[key] = made = self._make(key)
        return made


class _Stage(PipelineStage):
    """One pass of a stage over microbatches of different shapes."""

    def __init__(self, place: Pipeline, model: nn.Module, shapes: Sequence[Shape], call: Call):
        super().__init__(model, place.stage, place.stages, place.device, group=place.group)
        self._place, self._shapes, self._run, self._at = place, shapes, call, 0
        self._meta = extract_tensor_meta(
            torch.empty(0, dtype=place.dtype, device=place.device, requires_grad=True)
        )
        self.chunks = len(shapes)
        self.args_recv_info = _LazyDict(lambda i: self._receive_buffer(i, self.stage_index - 1))
        self.grad_recv_info = _LazyDict(lambda i: self._receive_buffer(i, self.stage_index + 1))
        self.act_send_info = {0: [] if self.is_last else [self.stage_index + 1]}
        self.grad_send_info = [None if self.is_first else self.stage_index - 1]
        self._stage_meta.inputs = self._stage_meta.input_grads = (self._meta,)

    def run_forward(self) -> None:
        """Run the forward pass of all microbatches, without gradients."""
        sent: list[Any] = []
        for i in range(len(self._shapes)):
            _wait_batch_p2p(_batch_p2p(self.get_fwd_recv_ops(i)))
            self.forward_one_chunk(i, ())
            _wait_batch_p2p(sent)
            sent = _batch_p2p(self.get_fwd_send_ops(i))
            del self.fwd_cache[i]
            self.args_recv_info.pop(i, None)
        _wait_batch_p2p(sent)

    def _receive_buffer(self, i: int, source: int) -> tuple[_RecvInfo, ...]:
        """Return a receive buffer for a microbatch from another stage; the first stage has its
        tokens."""
        if source < 0:
            return (_RecvInfo("tokens", None, None, self._meta, is_root_arg=True),)
        place = self._place
        size = (*self._shapes[i], place.width)
        buffer = torch.empty(size, dtype=place.dtype, device=place.device)
        return (_RecvInfo(f"hidden {i}", source, buffer, self._meta),)

    # ---- what torch's schedules call

    def _warmup_forward_vote(self, *_: Any, **__: Any) -> Tensor:
        return torch.ones(1)  # all ranks know the shapes, so there is no vote

    def _warmup_backward_result(self, *_: Any, **__: Any) -> Tensor:
        return torch.ones(1)

    def _prepare_forward_infra(self, *_: Any, **__: Any) -> None: ...

    def _prepare_backward_infra(self, *_: Any, **__: Any) -> None: ...

    def _post_metadata_inference_cleanup(self) -> None: ...

    def forward_one_chunk(self, fwd_chunk_id: int, *_: Any, **__: Any) -> Any:
        self._at = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, (None,), None, False)

    def forward_maybe_with_nosync(self, hidden: Tensor | None) -> Tensor:
        """Pass only hidden states; torch would look for gradients of any other input."""
        out = self._run(self._at, hidden)
        return out if self.is_last else out.to(self._place.dtype).contiguous()

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        (info,) = self.args_recv_info.pop(bwd_chunk_id)
        self.grad_recv_info.pop(bwd_chunk_id, None)
        if not self.is_first:
            (grad,) = self.bwd_cache[bwd_chunk_id]
            grad = torch.zeros_like(info.buffer) if grad is None else grad  # type: ignore[arg-type]
            self.bwd_cache[bwd_chunk_id] = (grad.contiguous(),)
