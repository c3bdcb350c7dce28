"""L404 and L406, which inference reports: each in three spellings, as the other loss rules."""

from pathlib import Path

import pytest

from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile

from .conftest import BASE

RATIO = "ratio = exp(clamp(logprob - behavior, -10.0, 10.0))"
LOSS = "minimize token_mean(-ratio * adv, mask)"
IMPORT = ('import "std/rl" as rl', 'import "std/rl" as rl\nimport "lib" as lib')
HEAD = BASE[BASE.index("loss pg(") : BASE.index("flow train")]
WEIGHT = "fn weight(x: [B, T] f32, y: [B, T] f32) -> [B, T] f32 = "
SPELLINGS = [
    ("L404", "renamed", [(RATIO, RATIO.replace("ratio", "w").replace("logprob", "stop(logprob)")),
                         (LOSS, LOSS.replace("ratio", "w"))], ""),
    ("L404", "split over several steps",
     [(RATIO, "s = stop(logprob)\n  d = s - behavior\n  ratio = exp(clamp(d, -9.0, 9.0))")], ""),
    ("L404", "moved into an imported module", [(RATIO, "ratio = lib.weight(logprob, behavior)"),
                                               IMPORT],
     WEIGHT + "exp(clamp(stop(x) - y, -10.0, 10.0))\n"),
    ("L406", "renamed",
     [("adv: [B] f32", "gain: diff [B] f32"), (LOSS, LOSS.replace("adv", "gain")),
      ("adv = norm", "gain = norm")], ""),
    ("L406", "split over several steps",
     [("behavior: [B, T]", "behavior: diff [B, T]"),
      (RATIO, "d = logprob - behavior\n  c = clamp(d, -9.0, 9.0)\n  ratio = exp(c)")], ""),
    ("L406", "moved into an imported module",
     [(HEAD, ""), ("loss = pg", "loss = lib.pg"), IMPORT],
     HEAD.replace("adv: [B] f32", "adv: diff [B] f32")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "edits", "module"),
    [(code, edits, module) for code, _, edits, module in SPELLINGS],
    ids=[f"{code} {spelling}" for code, spelling, _, _ in SPELLINGS],
)
def test_a_rule_of_inference_fires_in_every_spelling(code, edits, module, tmp_path):
    text = BASE
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    (tmp_path / "lib.forge").write_text(module, "utf-8")
    result = lint_source(SourceFile("t.forge", text), tmp_path)
    assert [d.code for d in result.diagnostics] == [code]


def test_a_factor_that_is_given_as_0_is_named_where_it_is_given():
    shipped = Path(__file__).parents[2] / "pipelines" / "dpo_math.forge"
    text = shipped.read_text("utf-8").replace("rl.dpo(beta = 0.1)", "rl.dpo(beta = 0.0)")
    result = lint_source(SourceFile("t.forge", text), shipped.parent)
    (found,) = (d for d in result.diagnostics if d.code == "L404")
    assert text[found.span.start : found.span.end] == "0.0"
    assert found.span.file == "t.forge"
    assert found.help.startswith("`beta` is 0")
