"""What vLLM samples from a real model, and what torchtitan and transformers make of its tokens.

    vllm FOLDER DTYPE   completions of PROMPTS in every way that a run asks for them, with log-probs
    titan REQUEST       {"folder", "out", "tokens", "dtype"}: log-probs of both, and an export
                        written to `out`

Run by test_real_model, each in a process of its own: both take the process group for themselves.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forgedsl.lower import job as spec

CONTEXT = 128
ASKED = (
    "What is 3 + 4? Answer with the number only.",
    "What is 2 + 2? Answer with the number only.",
)
WAYS = {
    "free": spec.Sampling(max_tokens=24),
    "watched": spec.Sampling(max_tokens=24, stop=("never said",)),
    "stopped": spec.Sampling(max_tokens=24, temperature=0.0, stop=(" =",)),
    "cut": spec.Sampling(max_tokens=2),
    "greedy": spec.Sampling(max_tokens=8, temperature=0.0),
}
TEXTS = ("  two leading spaces", "a , b . c ' d", "caf\u00e9 \U0001f642 \u65e5\u672c\n\n ok")
MODEL = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=CONTEXT)


def prompts(folder: Path) -> list[list[int]]:
    from forgedsl_runtime.data import ChatTokenizer

    chat = ChatTokenizer.load(str(folder))
    return [chat.prompt_tokens([{"role": "user", "content": text}]) for text in ASKED]


def vllm(folder: Path, dtype: Any) -> dict[str, Any]:
    from forgedsl_runtime.services.vllm.upstream import engine as upstream
    from forgedsl_runtime.services.vllm.upstream.variables import prepare_environment

    prepare_environment("cpu")
    mesh = spec.Mesh(name="m", device="cpu")
    service = spec.VllmService(
        model="m", mesh=mesh, dtype=dtype, sampling=WAYS["free"], max_running=16
    )
    engine_rank = upstream.EngineRank(rank=0, ranks=1, rendezvous_file=folder / "rendezvous")
    engine = upstream.Engine(service, MODEL, folder, 1, engine_rank)
    asked = prompts(folder)
    for way, sampling in WAYS.items():
        for i, prompt in enumerate(asked):
            for seed in range(3 if sampling.temperature else 1):
                engine.add(f"{way} {i} {seed}", prompt, sampling, seed)
    done = []
    while engine.num_running:
        done += engine.step()
    found = {}
    for each in done:
        prompt = asked[int(each.request_id.split()[1])]
        found[each.request_id] = {
            "prompt": prompt, "tokens": each.token_ids, "logprobs": each.logprobs,
            "text": engine.texts([each])[0], "truncated": each.truncated,
        }  # fmt: skip
        if each.request_id.startswith("free"):
            scored, _ = engine.score(each.request_id + " again", prompt + each.token_ids)
            found[each.request_id]["scored"] = scored[len(prompt) - 1 :]
    return {"completions": found, "texts": decoded(engine, upstream)}


def decoded(engine: Any, upstream: Any) -> list[dict[str, Any]]:
    """Texts that no sampler would come upon: as a run gets them with stop strings and without."""
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    tokenizer = engine._engine.get_tokenizer()
    found = []
    for text in TEXTS:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        in_pieces = [i for i in range(len(tokens)) if tokenizer.decode(tokens[:i])[-1:] == "\ufffd"]
        ends = [([*tokens, tokenizer.eos_token_id], False), (tokens, True)]
        for ids, truncated in ends + [(tokens[:i], True) for i in in_pieces[:1]]:
            request: Any = SimpleNamespace(
                request_id="t", prompt_token_ids=[1], external_req_id="t",
                sampling_params=SamplingParams(stop=["never said"]),
            )  # fmt: skip
            steps = IncrementalDetokenizer.from_new_request(tokenizer, request)
            steps.update(list(ids), not truncated)
            theirs = steps.get_next_output_text(finished=True, delta=False)
            ways = [
                upstream.Finished(
                    request_id="t", token_ids=ids, logprobs=[], text=seen, truncated=truncated
                )
                for seen in (None, theirs)
            ]
            said = tokenizer.decode(tokens[: len(ids)])
            found.append(
                {
                    "said": said,
                    "free": engine.texts([ways[0]])[0],
                    "watched": engine.texts([ways[1]])[0],
                }
            )
    return found


def titan(request: dict[str, Any]) -> dict[str, Any]:

    import torch
    from transformers import AutoModelForCausalLM

    from forgedsl_runtime.rendezvous import rendezvous_store
    from forgedsl_runtime.services.titan.upstream import model as upstream
    from forgedsl_runtime.weight_folders import write_folder

    folder, out = Path(request["folder"]), Path(request["out"])
    store = rendezvous_store()
    parts = upstream.init_distributed("cpu", 0, 0, 1, store.host, store.port)
    service = spec.TitanService(
        model="m", mesh=spec.Mesh(name="m", device="cpu"), dtype=request["dtype"],
        batch=spec.BatchShape(seq_len=CONTEXT, rows=1),
    )  # fmt: skip
    built = upstream.build_model(MODEL, service, folder, parts)
    upstream.load_hf_weights(built, folder)
    found: dict[str, Any] = {"titan": {}}
    for name, ids in request["tokens"].items():
        tokens = torch.tensor([ids])
        mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None, None]
        with torch.no_grad():
            logits = built.hidden_to(
                lambda h, w, _: h @ w.T, tokens, torch.arange(len(ids))[None], mask
            )
        found["titan"][name] = of_tokens(logits, tokens)
    state = {k: v.clone() for k, v in built.export_tensors(torch.float32)}
    write_folder(state, out, folder, "f32")
    half = AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    for who, each in (("transformers in bf16", half), ("transformers", model)):
        with torch.no_grad():
            found[who] = {
                name: of_tokens(each(torch.tensor([ids])).logits, torch.tensor([ids]))
                for name, ids in request["tokens"].items()
            }
    found["greedy"] = [
        model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=8)[
            0, len(ids) :
        ].tolist()
        for ids in prompts(out)
    ]
    return found


def of_tokens(logits: Any, tokens: Any) -> list[float]:
    """Log-prob of each token but the first."""
    logprobs = logits.float().log_softmax(-1)[0, :-1]
    return logprobs.gather(-1, tokens[0, 1:, None])[:, 0].tolist()


def main() -> None:
    what, argument, *dtype = sys.argv[1:]
    found = vllm(Path(argument), dtype[0]) if what == "vllm" else titan(json.loads(argument))
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
