"""A model that ships is read like any local one: its context bounds the rows of a batch."""

from pathlib import Path

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.graph.dataflow import build
from forgedsl.plan.plan import plan

TEXT = """
model m { source = local("forgedsl:models/tiny_math") }
dataset d { source = jsonl("forgedsl:data/arithmetic_demos.jsonl"), chat = row.messages }
service trainer : titan(m) { device = cpu }
loss nll(logprob: diff [B, T] f32, mask: [B, T] bool) { minimize token_mean(-logprob, mask) }
flow train {
  batch = d.batches()
  trainer.step(batch, loss = nll)
}
schedule sync { steps = 1 }
"""


def test_rows_are_as_long_as_the_models_context(tmp_path: Path) -> None:
    program, reporter = api.load_text(TEXT, folder=tmp_path, profile="none").checked, Reporter()
    graph = build(program, reporter=reporter)
    assert graph is not None
    planned = plan(program, graph, reporter=reporter, base_dir=tmp_path)
    assert list(reporter) == []
    assert planned is not None
    assert planned.rows["trainer"].seq_len == 256
