"""Samples with an engine that records routes; prints them, and those of the same texts read anew.

Run by test_router_replay: vLLM takes a process for itself. Arguments: an empty folder, for a
small mixture of experts, its family and its sizes.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from small_engine import small_engine
from transformers import AutoConfig, AutoModelForCausalLM

from forgedsl.families import registry
from forgedsl.lower import job as spec
from forgedsl_runtime.models import TOKENIZER_FILES
from forgedsl_runtime.services.vllm.upstream import engine as upstream

TINY = Path(__file__).parents[2] / "pipelines/models/tiny_math"
PROMPTS = [[3 + (7 * i + at) % 40 for at in range(34 + i % 3)] for i in range(6)]
"""the first block of 32 tokens is full, so that siblings find it in the prefix cache"""


STOPS = {4: ("7",), 5: ("@@",), 6: ("2", "5"), 7: ("7",)}
"""stop strings by request. No text has "@@"; 7 is aborted"""


def write_model(folder: Path, name: str, sizes: dict[str, Any]) -> None:
    """Write a model with random weights, large enough to choose clearly."""
    for file in TOKENIZER_FILES:
        if (TINY / file).exists():
            shutil.copyfile(TINY / file, folder / file)
    family = registry.family(name)
    config = family.write(family.dims(None, sizes, 256)) | {"max_position_embeddings": 256}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)


def sampled(own: upstream.Engine, swap: Any = None) -> list[tuple[list[int], Any]]:
    """Prompt and completion of 12 requests, and their routes; `swap` is called after 8 steps."""
    for i in range(12):
        stop = STOPS.get(i, ())
        own.add(f"{i}", PROMPTS[i // 2], spec.Sampling(max_tokens=40, stop=stop), i)
    own.abort(["7"])
    done: dict[str, upstream.Finished] = {}
    step = 0
    while own.num_running:
        done |= {each.request_id: each for each in own.step()}
        step += 1
        if swap is not None and step == 8:
            swap()
    assert sorted(done, key=int) == [str(i) for i in range(12) if i != 7]
    by_text = [name for name, each in done.items() if len(each.token_ids) < 40]
    assert {"4", "6"} <= set(by_text) <= set(done) - {"5"}, by_text
    found = []
    for name, each in done.items():
        assert each.routes is not None, name
        found.append((PROMPTS[int(name) // 2] + each.token_ids, each.routes.wait()))
    return found


def read_anew(own: upstream.Engine, tokens: list[int]) -> Any:
    """The routes of a text that is all prompt, past the prefix cache."""
    own._engine.reset_prefix_cache()
    own.add("anew", tokens, spec.Sampling(max_tokens=1), 0)
    while own.num_running:
        for each in own.step():
            assert each.routes is not None
            return each.routes.wait()
    raise AssertionError


def compared(own: upstream.Engine, given: list[tuple[list[int], Any]]) -> list[list[Any]]:
    """By request: shape of its routes, tokens, and how many differ from those read anew."""
    found: list[list[Any]] = []
    for tokens, routes in given:
        anew = read_anew(own, tokens)[: len(tokens) - 1]
        a, b = (sorted_ids(each) for each in (routes, anew))
        found.append([list(routes.shape), len(tokens), int((a != b).any((-1, -2)).sum())])
    return found


def sorted_ids(routes: Any) -> Any:
    import numpy as np

    return np.sort(routes, -1)


def main() -> None:
    folder = Path(sys.argv[1])
    write_model(folder, sys.argv[2], json.loads(sys.argv[3]))
    own = small_engine(folder, folder / "rendezvous", record_routes=True)
    weights = load_file(folder / "model.safetensors")
    other = {name: value * (1.2 if "gate.weight" in name else 1.0) + 0.02 * ("gate" in name)
             for name, value in weights.items()}  # fmt: skip
    plain = compared(own, sampled(own))
    anew = sampled(own, lambda: own.load_weights(list(other.items()), keep=False))
    swapped = compared(own, anew)
    left = own._scheduler
    print("RESULT" + json.dumps({
        "plain": plain, "swapped": swapped, "short": left.num_short, "left": len(left.routes),
        "experts": sorted({int(e) for _, routes in anew for e in routes.flatten()}),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
