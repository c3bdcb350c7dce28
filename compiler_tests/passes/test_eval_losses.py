"""An eval that measures a loss: what it lowers to, and what it cannot be."""

from pathlib import Path

import pytest
from forge_texts import GRPO, changed, lower_of
from forge_texts import SFT as PLAIN

from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile

SFT = changed(PLAIN, ("forge 1\n", 'forge 1\nimport "std/rl" as rl\n'))
HELD = 'eval held { dataset = tulu, split = "test", loss = LOSS, every = 10, limit = 50 }\n'


def lowered(loss="nll", text=SFT):
    found, _ = lower_of(text + HELD.replace("LOSS", loss), folder=Path())
    return found.job


def linted(text):
    return [
        (d.code, d.message) for d in lint_source(SourceFile("t.forge", text), Path()).diagnostics
    ]


def test_it_goes_to_the_trainer_and_reads_rows_of_its_own():
    job = lowered()
    held = job.evals["held"]
    assert (held.service, held.loss, held.score, held.sampling) == ("trainer", "nll", None, None)
    assert job.datasets[held.dataset].source.split == "test"


def test_a_loss_of_its_own_is_lowered_beside_that_of_the_step():
    job = lowered("rl.sft")
    assert sorted(job.losses) == ["nll", "rl.sft"]


def test_values_of_its_own_leave_the_loss_of_the_step_alone():
    text = changed(SFT, ("loss = nll)", "loss = rl.sft)"))
    job = lowered("rl.sft(label_smoothing = 0.5)", text)
    assert job.losses["rl.sft"].source != job.losses["held.loss"].source


@pytest.mark.parametrize(
    ("loss", "held", "code", "message"),
    [
        ("nll, score = correct", HELD, "F110", "eval `held` has a `score` and a `loss`"),
        ("none", HELD, "F110", "eval `held` has neither `score` nor `loss`"),
        ("rl.sfd", HELD, "F101", "there is no loss `rl.sfd`"),
        ("rl.dapo", HELD, "F111",
         "loss `dapo` needs `behavior`, `adv`, which an eval does not have"),
        ("nll, sample { n = 2 }", HELD, "F103",
         "`sample.n` applies only to an eval with a `score`, which samples answers"),
        ("margin", HELD + "loss margin(logprob: diff [P, T] f32, mask: [P, T] bool) { minimize "
         "pair_mean(sum(logprob.rejected, T, mask.rejected) - sum(logprob.chosen, T, mask.chosen)) "
         "}\n", "F110", "eval `held` reads `chosen`, which `tulu` does not have"),
    ],
)  # fmt: skip
def test_what_it_cannot_be(loss, held, code, message):
    text = changed(SFT, ("flow train", "reward correct = rl.exact\nflow train"))
    assert (code, message) in linted(text + held.replace("LOSS", loss))


def test_prompts_are_no_conversations():
    text = GRPO + "eval held { dataset = gsm8k, loss = rl.sft, every = 10 }\n"
    assert ("F110", "eval `held` reads `chat`, which `gsm8k` does not have") in linted(text)
