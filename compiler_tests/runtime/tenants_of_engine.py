"""One engine with tenants beside the policy (`together`): prints what they answer while the
policy's adapter changes. Or what an engine of their own answers (`base`, `adapted`).

Run by test_tenants.py: vLLM takes a process for itself.
"""

import json
import sys
from pathlib import Path
from typing import Any

from family_adapters import RANK, drawn
from safetensors.torch import load_file

from forgedsl.lower import job as spec
from forgedsl_runtime.services.vllm.upstream import engine as upstream
from forgedsl_runtime.services.vllm.upstream.variables import prepare_environment

PROMPTS = [[3 + (7 * i + at) % 20 for at in range(34 + i)] for i in range(6)]
"""each fills a block, so that the prefix cache has something to mix up"""
GREEDY = spec.Sampling(max_tokens=24, min_tokens=24, temperature=0.0)
PLAIN = spec.Sampling(max_tokens=24)
"""of the policy: its log-probs are those of the model, since no end of a text is forbidden"""
TENANTS = ("base", "adapted")
Answers = dict[str, tuple[list[int], list[float]]]


def engine(folder: Path, adapter: Path | None) -> upstream.Engine:
    """An engine with few blocks; with the folder of an adapter it has both tenants."""
    prepare_environment("cpu")
    service = spec.VllmService(
        model="m", mesh=spec.Mesh(name="m", device="cpu"), dtype="f32", max_running=24,
        sampling=spec.Sampling(max_tokens=4), adapter_rank=None if adapter is None else RANK,
        extra={"block_size": 32, "num_gpu_blocks_override": 64},
    )  # fmt: skip
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=96)
    rank = upstream.EngineRank(rank=0, ranks=1, rendezvous_file=folder / "rendezvous")
    tenants = {} if adapter is None else {"base": None, "adapted": adapter}
    return upstream.Engine(service, model, folder, 1, rank, tenants=tenants)


def add(own: upstream.Engine, tenants: tuple[str, ...]) -> None:
    for tenant in tenants:
        for i, prompt in enumerate(PROMPTS):
            sampling = GREEDY if tenant else PLAIN
            own.add(f"{tenant} {i}", prompt, sampling, i, tenant=tenant)


def finish(own: upstream.Engine, done: Any = ()) -> Answers:
    done = list(done)
    while own.num_running:
        done += own.step()
    return {each.request_id: (each.token_ids, each.logprobs) for each in done}


def answers(own: upstream.Engine, *tenants: str) -> Answers:
    add(own, tenants)
    return finish(own)


def crossing(own: upstream.Engine, adapter: Any, *, keep: bool) -> dict[str, Any]:
    """Swap the policy's adapter while requests of all are sampled."""
    add(own, ("", *TENANTS))
    done = [each for _ in range(4) for each in own.step()]
    ended = {each.request_id for each in done}
    before = own.progress(keep=keep)
    own.load_weights(adapter.items(), keep=keep)
    requests = own._scheduler.requests.values()
    dropped = [r.request_id for r in requests if r.num_preemptions]
    return {
        "before": before, "dropped": dropped, "ended": sorted(ended), "answers": finish(own, done),
    }  # fmt: skip


def rescored(own: upstream.Engine, found: Answers, since: dict[str, int]) -> float:
    """The largest distance of the policy's log-probs from those of the same texts under the adapter
    that the engine has now; of each request in `since`, from this token on."""
    apart = [0.0]
    for name, (tokens, logprobs) in found.items():
        if not name.startswith(" ") or name not in since:
            continue
        prompt = PROMPTS[int(name)]
        scores = own.score(f"score {name}", prompt + tokens)[0][len(prompt) - 1 :]
        pairs = list(zip(scores, logprobs, strict=True))[since[name] :]
        apart += [abs(a - b) for a, b in pairs]
    return max(apart)


def together(folder: Path, adapter: Path) -> dict[str, Any]:
    own = engine(folder, adapter)
    weights = load_file(folder / "model.safetensors")
    versions = [drawn(weights, seed, size=0.1) for seed in range(1, 6)]
    found: dict[str, Any] = {
        "at first": answers(own, *TENANTS), "faults": own.tenant_faults(),
        "tensors": own.tenant_tensors("adapted"),
    }  # fmt: skip
    found["policy apart"] = []
    for version, keep in zip(versions, (False, True, False), strict=False):
        own.load_weights(version.items(), keep=keep)
        given = answers(own, "")
        found["policy apart"].append(rescored(own, given, dict.fromkeys(given, 0)))
    found["after three"] = answers(own, *TENANTS)
    found["with the policy"] = answers(own, "", *TENANTS)
    for version, keep in zip(versions[3:], (False, True), strict=True):
        crossed = crossing(own, version, keep=keep)
        crossed["apart"] = rescored(own, crossed["answers"], crossed["before"])
        found[f"crossing {keep}"] = crossed
    found["faults at last"] = own.tenant_faults()
    (layer,) = own._engine.apply_model(
        lambda model: model.lora_manager.modules["model.layers.1.mlp.down_proj"]
    )
    layer.lora_b_stacked[0][1, 0, 3, 2] += 1.0
    found["faulty"] = own.tenant_faults()
    return found


def main() -> None:
    mode, folder, *adapter = sys.argv[1:]
    if mode == "together":
        found: Any = together(Path(folder), Path(adapter[0]))
    else:
        own = engine(Path(folder), None)
        for i, prompt in enumerate(PROMPTS):
            own.add(f"{mode} {i}", prompt, GREEDY, i)
        found = finish(own)
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
