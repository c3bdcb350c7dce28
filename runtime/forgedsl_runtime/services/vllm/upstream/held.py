"""Weights that a vLLM engine holds, under the names and at the places of the published ones.

    module, parameter --class of the layer--> parts of published tensors: (name, rows, columns)

vLLM fuses tensors (q, k and v; gate and up) and gives each rank of a replica a part of them. Where
each part comes from follows from the class of its layer. Some engines convert loaded weights (they
pack them for a CPU, or quantize them). The `quant_method` of a layer does this in
`process_weights_after_loading`, at every load. Digests are taken before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from forgedsl_runtime.proofs.digest import Digests, digest
from forgedsl_runtime.proofs.publication import Held

PARTS = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
"""parts of fused layers, for models whose files hold the fused tensor (Phi-3): vLLM's class then
does not name the parts"""
CORRECTION = "e_score_correction_bias"
"""bias that a router adds to the scores of experts where it chooses (GLM)"""
MANY_PARTS = 16
"""a published tensor with more parts than this is loaded by vLLM: experts whose columns are split
over ranks have a part for each row"""
LORA_SUFFIX = ".base_layer"
"""suffix that vLLM adds to the names of layers with adapters"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a parameter, and the place of its first element in the published tensor."""

    name: str
    value: Tensor
    row: int = 0
    column: int = 0


class HeldWeights:
    """Digests of the weights of one rank of an engine."""

    def __init__(self, model: nn.Module, *, in_place: bool) -> None:
        self._model, self._in_place = model, in_place
        fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
        self._fused = {
            name: PARTS.get(name, parts) if parts == [name] else parts
            for name, parts in fused.items()
        }
        self._noted: dict[str, list[tuple[Part, Tensor]]] | None = None
        """by module: digests of the loaded weights, taken before vLLM repacks or quantizes them;
        None if no load is in progress"""
        self._places: list[tuple[str, Part]] | None = None
        """all parts, if new weights are written over the old ones; known after the first proof"""
        self._writable: dict[str, list[Part]] = {}
        """by published name: all its parts, where they can be written"""
        self._pointers: list[int] = []
        """address of each parameter when these places were found"""
        self._converts: set[str] = set()
        tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
        self._tied = {"lm_head": "model.embed_tokens"} if tied else {}
        for name, module in model.named_modules():
            if not in_place and hasattr(module, "quant_method"):
                self._converts.add(name)
                self._watch(name, module)

    def begin(self) -> None:
        """Record digests during the load that begins now."""
        self._noted = {}

    def take(self) -> list[Held]:
        """Return the digests of all weights after a load, and stop recording."""
        noted, self._noted = self._noted or {}, None
        digests = Digests()
        if self._in_place:
            found = self._find_places()
            for _, part in found:
                digests.add(part.value, part.row, part.column)
        else:
            found = []
            for name, module in self._model.named_modules():
                if name in self._converts:
                    for part, value in noted.get(name, ()):
                        digests.add_found(value)
                        found.append((name, part))
                    continue
                for part in self._held_parts(name, module):
                    digests.add(part.value, part.row, part.column)
                    found.append((name, part))
        return [
            _held(name, part, value)
            for (name, part), value in zip(found, digests.read(), strict=True)
        ]

    def _find_places(self) -> list[tuple[str, Part]]:
        """Return all parts and the modules that hold them. They are found anew only if a parameter
        lies elsewhere than before."""
        pointers = [value.data_ptr() for value in self._model.parameters()]
        if self._places is None or pointers != self._pointers:
            self._pointers = pointers
            self._places = [
                (name, part)
                for name, module in self._model.named_modules()
                for part in self._held_parts(name, module)
            ]
            self._writable = self._find_writable([part for _, part in self._places])
        return self._places

    def _find_writable(self, parts: Iterable[Part]) -> dict[str, list[Part]]:
        """Return the parts of each published tensor that can be copied to its places: all of them
        are in memory of the model's parameters, and adjacent there. A tied head is the embedding
        itself, and counts once."""
        own = {value.untyped_storage().data_ptr() for value in self._model.parameters()}
        found: dict[str, dict[tuple[int, ...], Part]] = {}
        others = set()
        for part in parts:
            value = part.value
            if value.is_contiguous() and value.untyped_storage().data_ptr() in own:
                place = (value.data_ptr(), len(value), part.row, part.column)
                found.setdefault(part.name, {})[place] = part
            else:
                others.add(part.name)
        return {
            name: list(here.values())
            for name, here in found.items()
            if name not in others and len(here) <= MANY_PARTS
        }

    def write(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Copy published tensors to their places, and yield those that vLLM has to load. vLLM's own
        loaders take 40 us for each expert and projection, in Python. Call this only if new weights
        are written over the old ones, and a proof has shown that these places are right."""
        self._find_places()
        for name, value in weights:
            if name not in self._writable:
                yield name, value
                continue
            for part in self._writable[name]:
                _write(part, value)

    def names(self) -> set[str]:
        """Return the published names that this engine has a place for."""
        return {
            name
            for path, module in self._model.named_modules()
            for parameter, _ in module.named_parameters(recurse=False)
            for name in self._names(path, parameter, module)
        }

    def _watch(self, name: str, module: Any) -> None:
        method = module.quant_method
        convert = method.process_weights_after_loading

        def noting(layer: nn.Module) -> None:
            if self._noted is not None and layer is module:
                self._noted[name] = [
                    (part, digest(part.value, part.row, part.column))
                    for part in self._held_parts(name, layer)
                ]
            convert(layer)

        method.process_weights_after_loading = noting

    def _held_parts(self, name: str, module: nn.Module) -> Iterator[Part]:
        for parameter, value in module.named_parameters(recurse=False):
            own = _as_loaded(parameter, module, value.data)
            for part in self._parts(name, parameter, module, own):
                if part.value.numel():
                    yield part

    def _names(self, path: str, parameter: str, module: Any) -> list[str]:
        path = path.replace(LORA_SUFFIX, "")
        if parameter in ("w13_weight", "w2_weight"):
            layer = path[: path.index(".experts") + len(".experts")]
            return [f"{layer}.{'down_proj' if parameter == 'w2_weight' else 'gate_up_proj'}"]
        if parameter == CORRECTION:  # the router has it, and its experts refer to it
            return [f"{path.partition('.experts')[0].removesuffix('.gate')}.gate.{parameter}"]
        above, _, last = path.rpartition(".")
        fused = [f"{above}.{each}" for each in self._fused.get(last, ())]
        return [f"{each}.{parameter}" for each in fused or [self._tied.get(path, path)]]

    def _parts(self, path: str, parameter: str, module: Any, value: Tensor) -> Iterator[Part]:
        """Cut a parameter into the parts that are published, by the class of its layer."""
        kind = {cls.__name__ for cls in type(module).__mro__}
        names = self._names(path, parameter, module)
        if parameter in ("w13_weight", "w2_weight"):
            yield from _experts(names[0], parameter, module.moe_config, value)
        elif "VocabParallelEmbedding" in kind:
            place = module.shard_indices
            start, count = place.org_vocab_start_index, place.num_org_elements
            yield Part(name=names[0], value=value[:count], row=start)
        elif "QKVParallelLinear" in kind:
            shares = (0, module.num_kv_head_replicas, module.num_kv_head_replicas)
            rows = (
                module.num_heads * module.head_size, module.num_kv_heads * module.head_size,
                module.num_kv_heads * module.v_head_size,
            )  # fmt: skip
            at = [module.tp_rank // (copies or 1) for copies in shares]
            yield from _cut(names, value, rows, at)
        elif "ColumnParallelLinear" in kind:
            rows = tuple(module.output_partition_sizes)
            yield from _cut(names, value, rows, [module.tp_rank] * len(rows))
        elif "RowParallelLinear" in kind and value.dim() > 1:
            yield Part(name=names[0], value=value, column=module.tp_rank * value.shape[1])
        else:
            yield Part(name=names[0], value=value)


def _as_loaded(parameter: str, module: Any, value: Tensor) -> Tensor:
    """Return a parameter in the dtype in which it was loaded. On CPUs with AMX, vLLM widens the
    bias of a small layer to float32 after the first load, and later loads copy into that tensor."""
    dtype = getattr(module, "params_dtype", value.dtype)
    if parameter != "bias" or value.dtype == dtype:
        return value
    narrow = value.to(dtype)
    return narrow if narrow.to(value.dtype).equal(value) else value


def _cut(names: list[str], value: Tensor, rows: tuple[int, ...], at: list[int]) -> Iterator[Part]:
    """Cut rows of fused tensors apart; this rank has the `at`-th share of each."""
    start = 0
    for name, count, share in zip(names, rows, at, strict=True):
        yield Part(name=name, value=value[start : start + count], row=share * count)
        start += count


def _experts(name: str, parameter: str, config: Any, value: Tensor) -> Iterator[Part]:
    """Cut the experts of a layer. They are published as one matrix, with one row per expert."""
    rank, ranks = config.tp_rank, config.tp_size
    if ranks == 1:
        yield Part(name=name, value=value)
        return
    for expert, own in enumerate(value):
        height, width = own.shape
        if parameter == "w2_weight":  # [hidden, ffn]: this rank has some columns of each row
            for row in range(height):
                column = (row * ranks + rank) * width
                yield Part(name=name, value=own[row : row + 1], row=expert, column=column)
            continue
        half = height // 2 * width
        for at, part in enumerate(own.chunk(2)):
            column = (at * ranks + rank) * half
            yield Part(name=name, value=part.reshape(1, -1), row=expert, column=column)


def _write(part: Part, whole: Tensor) -> None:
    """Copy a part of a published tensor to its place in the engine."""
    to, of = part.value.view(len(part.value), -1), whole.view(len(whole), -1)
    rows, columns = to.shape
    to.copy_(of[part.row : part.row + rows, part.column : part.column + columns])


def _held(where: str, part: Part, value: int) -> Held:
    rows = len(part.value)
    return Held(
        name=part.name, row=part.row, rows=rows, column=part.column,
        columns=part.value.numel() // rows, value=value, where=where,
        dtype=str(part.value.dtype).removeprefix("torch."),
    )  # fmt: skip
