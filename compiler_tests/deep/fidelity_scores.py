"""Log-probs of training rows by torchtitan's model, under the weights of several folders.

    fidelity_scores.py REQUEST OUT
        REQUEST: {"folders": {version: folder}, "rows": [token ids], "wanted": {version: [row]}}
        OUT: {version: {row: log-probs}}

Run by test_agent_fidelity in a process of its own, which becomes a process group.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from forgedsl.lower import job as spec
from forgedsl_runtime.rendezvous import rendezvous_store
from forgedsl_runtime.services.titan.upstream import model as upstream

CONTEXT = 6144


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    store = rendezvous_store()
    parts = upstream.init_distributed("cpu", 0, 0, 1, store.host, store.port)
    service = spec.TitanService(
        model="m", mesh=spec.Mesh(name="m", device="cpu"), dtype="f32",
        batch=spec.BatchShape(seq_len=CONTEXT, rows=1),
    )  # fmt: skip
    given = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=CONTEXT)
    built = upstream.build_model(given, service, Path(asked["folders"]["0"]), parts)
    found = {}
    for version, numbers in asked["wanted"].items():
        upstream.load_hf_weights(built, Path(asked["folders"][version]))
        found[version] = {number: logprobs(built, asked["rows"][number]) for number in numbers}
    Path(sys.argv[2]).write_text(json.dumps(found))


def logprobs(built: Any, ids: list[int]) -> list[float]:
    """Log-prob of each token but the first."""
    tokens = torch.tensor([ids])
    mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None, None]
    with torch.no_grad():
        logits = built.hidden_to(
            lambda h, w, _: h @ w.T, tokens, torch.arange(len(ids))[None], mask
        )
    every = logits.float().log_softmax(-1)[0, :-1]
    found: list[float] = every.gather(-1, tokens[0, 1:, None])[:, 0].tolist()
    return found


if __name__ == "__main__":
    main()
