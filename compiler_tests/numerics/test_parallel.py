"""Vocabulary-parallel losses over real process groups equal those of one rank, bit for bit alike
on all ranks: 11 columns over two ranks (6 and 5) and three (4, 4 and 3)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tolerance import EXACT

from forgedsl_runtime.losses import token_logprobs

WORKER = Path(__file__).with_name("vocabulary_rank.py")


def run(folder, calls, ranks):
    """The results of all ranks, by call."""
    folder.mkdir()
    torch.save(calls, folder / "calls.pt")
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), str(rank), str(ranks)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, errors
    found = [torch.load(folder / f"rank{rank}.pt") for rank in range(ranks)]
    return list(zip(*found, strict=True))


def call(losses, name, backend, form, **more):
    """A call of a standard loss, and what one rank with the whole vocabulary finds."""
    loss = losses.standard(name)
    near = 1e-4 if name.startswith(("gspo", "luspo")) else 0.3
    case = losses.make_case(loss, seed=7, noise=near)
    hidden, weight = case.hidden.detach(), case.weight.detach()
    inputs = {"temperature": 0.7, **case.batch, **case.inputs, **more}
    if form == "logits":
        inputs["logits"] = hidden @ weight.t()
    else:
        inputs |= {"hidden": hidden, "weight": weight}
    source, params = losses.source_of(name)
    split = "logits" if form == "logits" else "weight"
    return {"source": source, "params": params, "backend": backend, "split": split,
            "inputs": inputs, "name": name}  # fmt: skip


def alone(losses, given):
    """The loss, metrics and gradients without a group."""
    loss = losses.standard(given["name"])
    sources = ("logits",) if given["split"] == "logits" else ("hidden", "weight")
    inputs = dict(given["inputs"])
    leaves = [inputs[name].clone().requires_grad_() for name in sources]
    inputs |= dict(zip(sources, leaves, strict=True))
    out = (loss if given["split"] == "logits" else loss.linear)(**inputs)
    (2 * out.loss).backward()
    return out, [leaf.grad for leaf in leaves]


DEEP = os.environ.get("FORGE_DEEP") == "1"
FEW = ("sft_smoothed", "grpo_entropy", "gspo", "dpo")
FORMS = (("logits", {}), ("linear", {}), ("linear", {"chunk_rows": 4}))


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.deep)])
def test_ranks_that_share_a_vocabulary(losses, tmp_path, ranks):
    every = losses.names if ranks == 2 or DEEP else FEW
    names = {"torch": every, "triton": every if DEEP else FEW}
    calls = [
        call(losses, name, backend, form, **chunks)
        for backend, chosen in names.items()
        for form, chunks in FORMS
        for name in chosen
    ]
    for given, found in zip(calls, run(tmp_path / "run", calls, ranks), strict=True):
        out, gradients = alone(losses, given)
        label = f"{given['name']} {given['backend']} {given['split']}"
        assert all("error" not in part for part in found), (label, found)
        losses_of_ranks = [part["loss"] for part in found]
        assert all(torch.equal(part, losses_of_ranks[0]) for part in losses_of_ranks), label
        torch.testing.assert_close(losses_of_ranks[0], out.loss.detach(), **EXACT)
        torch.testing.assert_close(found[0]["metrics"], out.metrics, **EXACT)
        split = [part["gradients"][-1] for part in found]
        whole = torch.cat(split, -1 if given["split"] == "logits" else 0)
        torch.testing.assert_close(whole, gradients[-1], **EXACT)
        if given["split"] == "weight":
            for part in found:
                torch.testing.assert_close(part["gradients"][0], gradients[0], **EXACT)
                inputs = given["inputs"]
                logprobs = token_logprobs(inputs["hidden"], inputs["weight"], inputs["labels"], 0.7)
                torch.testing.assert_close(part["logprobs"], logprobs, **EXACT)
        form = "logits" if given["split"] == "logits" else "linear"
        names = {"torch": f"torch/{form}", "triton": f"triton/{form}/sharded"}
        assert found[0]["kernel"] == names[given["backend"]]


def test_extreme_shards_and_mistakes(losses, tmp_path):
    """A shard of padding, a label far above the rest, labels out of range, uneven shards."""
    base = call(losses, "grpo_entropy", "torch", "logits")
    padded = dict(base["inputs"])
    padded["logits"] = padded["logits"].clone()
    padded["logits"][:, 6:] = -torch.inf
    padded["labels"] = padded["labels"] % 6
    peaked = dict(base["inputs"])
    peaked["logits"] = peaked["logits"] + 500.0 * torch.nn.functional.one_hot(peaked["labels"], 11)
    wrong = dict(base["inputs"])
    wrong["labels"] = wrong["labels"].clone()
    wrong["labels"][:] = 11
    good = [
        {**base, "inputs": inputs, "backend": backend}
        for inputs in (padded, peaked)
        for backend in ("torch", "triton")
    ]
    found = run(tmp_path / "run", [*good, {**base, "inputs": wrong}], 2)
    for given, parts in zip(good, found[:-1], strict=True):
        out, gradients = alone(losses, given)
        torch.testing.assert_close(parts[0]["loss"], out.loss.detach(), **EXACT)
        whole = torch.cat([part["gradients"][0] for part in parts], -1)
        torch.testing.assert_close(whole, gradients[0], **EXACT)
    assert all("outside the vocabulary of 11" in part["error"] for part in found[-1])


def test_shards_are_those_of_chunk(monkeypatch):
    from forgedsl_runtime.losses import parallel

    monkeypatch.setattr(parallel.dist, "get_rank", lambda group: 1)
    monkeypatch.setattr(parallel.dist, "get_world_size", lambda group: 2)
    shard = parallel.Shard.of(None, 5, 11)
    assert (shard.first, shard.size, shard.whole, shard.largest) == (6, 5, 11, 6)
    assert parallel.Shard.of(None, 5, None).whole == 10
    with pytest.raises(
        ValueError, match="rank 1 of 2 has 6 columns of a vocabulary of 11, but should have 5"
    ):
        parallel.Shard.of(None, 6, 11)
