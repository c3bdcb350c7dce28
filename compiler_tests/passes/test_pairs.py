"""A loss over pairs needs a microbatch with room for both answers."""

from pathlib import Path

import pytest
from forge_texts import changed, plan_of

from forgedsl.lint.engine import lint_source
from forgedsl.records import replace
from forgedsl.sizes.hosts import Host, gpu_bytes
from forgedsl.source import SourceFile

DPO = """forge 1
import "std/rl" as rl
cluster { gpus = 1 }
model policy { source = random(0), arch = qwen3(layers = 2, hidden = 64, heads = 4, kv_heads = 2,
                                               ffn = 128, vocab = 512), context = 64 }
dataset pairs {
  source = jsonl("pairs.jsonl"), prompt = row.a, chosen = row.b, rejected = row.c
}
service trainer : titan(policy) { optimizer { lr = 1e-4 }, batch { seq_len = 64, rows = 2 } }
service reference : titan(policy) {}
flow train {
  pair  = pairs.pairs(8)
  batch = replay(pair, ref = reference.logprobs(pair))
  trainer.step(batch, loss = rl.dpo)
}
schedule sync { steps = 4 }
"""
H100 = Host(gpus=1, gpu="H100", gpu_memory=gpu_bytes("H100"))


def found(text: str) -> list[tuple[str, str | None]]:
    """Message and help of each P216."""
    done = lint_source(SourceFile("t.forge", text), Path())
    return [(d.message, d.help) for d in done.diagnostics if d.code == "P216"]


@pytest.mark.parametrize(
    ("rows", "help"),
    [("rows = 1", "`batch.rows = 2`"), ("tokens = 64", "`batch.tokens = 128`")],
)
def test_one_row_without_packing_is_an_error(rows: str, help: str) -> None:
    ((message, told),) = found(changed(DPO, ("rows = 2", f"{rows}, pack = false")))
    assert message == (
        "loss `rl.dpo` needs both answers of a pair in a microbatch, and microbatches of `trainer` "
        "have only 1 row of 64 tokens"
    )
    assert told == f"{help}, or `batch.pack = true`"


@pytest.mark.parametrize("rows", ["rows = 1", "rows = 2", "rows = 2, pack = false"])
def test_two_rows_are_enough_and_packed_answers_may_share_one(rows: str) -> None:
    assert not found(changed(DPO, ("rows = 2", rows)))


def test_other_losses_take_one_row() -> None:
    text = changed(DPO, ("rl.dpo", "rl.sft"), ("rows = 2", "rows = 1, pack = false"))
    assert not found(text)


def test_a_plan_chooses_two_rows_at_least() -> None:
    """A step of four sequences of 64 tokens on four ranks would fill a row on each."""
    text = changed(
        DPO, ("rows = 2", "rows = auto"), ("gpus = 1", "gpus = 4"),
        ("pairs.pairs(8)", "pairs.pairs(2)"),
        ("reference : titan(policy) {}", "reference : titan(policy) { device = cpu }"),
        ("titan(policy) { optimizer", "titan(policy) { procs = 4, optimizer"),
    )  # fmt: skip
    plan, diagnostics = plan_of(text, host=replace(H100, gpus=4))
    assert [d.code for d in diagnostics if d.severity == "error"] == []
    assert plan.rows["trainer"].rows == 2
