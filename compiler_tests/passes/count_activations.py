"""Prints what one layer of torchtitan's model keeps for its backward, in bytes per token.

Run by test_memory_model in a process of its own: torchtitan wants a process group. Storages that a
forward leaves alive are counted; two depths give the layer, without embedding and final norm.
"""

import contextlib
import gc
import json
import sys
import tempfile
import weakref

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from forgedsl.families import registry
from forgedsl.lower import job as spec
from forgedsl_runtime.rendezvous import rendezvous_store
from forgedsl_runtime.services.titan.upstream import model as titan

CP = 2


class Alive(TorchDispatchMode):
    """Storages made while active."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor):
                with contextlib.suppress(NotImplementedError, RuntimeError):
                    storage = value.untyped_storage()
                    self.found[storage._cdata] = weakref.ref(storage)
        return out

    def bytes(self):
        gc.collect()
        return sum(s.nbytes() for r in self.found.values() if (s := r()) is not None)


def kept(parts, folder, layers, mode, dtype, dims, rows, seq_len, cp=1):
    service = spec.TitanService(
        model="m",
        mesh=spec.Mesh(name="m", device="cpu"),
        dtype=dtype,
        batch=spec.BatchShape(seq_len=seq_len, rows=rows),
        activation_checkpoint=mode,
        parallel=spec.TitanParallel(cp=cp),
        optimizer=spec.Optimizer(lr=1e-3),
    )
    kind = "glm4_moe" if "shared" in dims else "qwen3_moe" if "experts" in dims else "qwen3"
    family = registry.family(kind)
    config = family.write(family.dims(None, {**dims, "layers": layers}, seq_len))
    (folder / "config.json").write_text(json.dumps(config))
    model = spec.Model(source=spec.RandomModel(seed=1), dtype=dtype, context=seq_len)
    built = titan.build_model(model, service, folder, parts)
    built.model.train()
    own = seq_len // cp
    tokens = torch.randint(0, dims["vocab"], (rows, own))
    positions = torch.arange(own).repeat(rows, 1)
    mask = torch.ones(seq_len, seq_len, dtype=torch.bool).tril().expand(rows, 1, -1, -1)
    with Alive() as alive:
        out = built.hidden_to(lambda hidden, *_: hidden, tokens, positions, mask)
        total = alive.bytes()
    assert out.shape == (rows, own, dims["hidden"])
    return total


def main():
    from pathlib import Path

    request = json.loads(sys.argv[1])
    store = rendezvous_store()
    parts = titan.init_distributed("cpu", 0, 0, 1, store.host, store.port)
    shape = (request["dims"], request["rows"], request["seq_len"])
    found = {}
    folder = Path(tempfile.mkdtemp())
    for mode in ("none", "selective", "full"):
        for dtype in ("f32", "bf16"):
            few, many = (kept(parts, folder, n, mode, dtype, *shape) for n in (2, 4))
            found[f"{mode} {dtype}"] = (many - few) / 2 / (request["rows"] * request["seq_len"])
    # ranks that share rows: what the others would send is not needed to count
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=CP)
    for mode in ("none", "selective", "full"):
        few, many = (kept(parts, folder, n, mode, "f32", *shape, CP) for n in (2, 4))
        tokens = request["rows"] * request["seq_len"] / CP
        found[f"{mode} shared"] = (many - few) / 2 / tokens
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
