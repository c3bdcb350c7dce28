"""`forgec certify`: equal functions are equal, and what differs is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import forgedsl
from forgedsl.cli.certify import main
from forgedsl_runtime.losses.certify import CallError, Verdict, certify

PPO = "ppo"


def surrogate(logprob: Tensor, behavior: Tensor, adv: Tensor, *, high: float = 1.2) -> Tensor:
    ratio = (logprob - behavior).exp()
    return torch.minimum(ratio * adv[:, None], ratio.clamp(0.8, high) * adv[:, None])


def clipped(logprob, behavior, adv, mask):
    return -(surrogate(logprob, behavior, adv) * mask).sum() / mask.sum()


def by_sequence(logprob, behavior, adv, mask):
    return -((surrogate(logprob, behavior, adv) * mask).sum(1) / mask.sum(1)).mean()


def higher(logprob, behavior, adv, mask):
    return -(surrogate(logprob, behavior, adv, high=1.28) * mask).sum() / mask.sum()


def wider(logprob, behavior, adv, mask):
    ratio = (logprob - behavior).exp()
    gain = torch.minimum(ratio * adv[:, None], ratio.clamp(0.7, 1.3) * adv[:, None])
    return -(gain * mask).sum() / mask.sum()


def summed(logprob, behavior, adv, mask):
    return clipped(logprob, behavior, adv, mask) * mask.sum()


def maximized(logprob, behavior, adv, mask):
    return -clipped(logprob, behavior, adv, mask)


def reads_masked(logprob, behavior, adv, mask):
    return -surrogate(logprob, behavior, adv).mean()


def with_constant(logprob, behavior, adv, mask):
    return clipped(logprob, behavior, adv, mask) + (behavior * mask).mean()


def half_detached(logprob, behavior, adv, mask):
    ratio = (logprob.detach() / 2 + logprob / 2 - behavior).exp()
    gain = torch.minimum(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None])
    return -(gain * mask).sum() / mask.sum(), {"more": 1}


def found(fn: Callable[..., object], loss: str = PPO, **names: str) -> Verdict:
    return certify(forgedsl.compile_loss(loss), fn, names=names, tolerance=1e-6)


def test_an_equal_function_is_equal() -> None:
    verdict = found(clipped)
    assert (verdict.what, verdict.by) == ("", ("logprob",))
    assert verdict.largest < 1e-12


@pytest.mark.parametrize(
    ("fn", "stage", "how"),
    [
        (by_sequence, "sequences of different lengths", "each sequence the same weight"),
        (higher, "ratios of 0.7 to 1.4", "a positive advantage and a ratio to `behavior` between"),
        (wider, "ratios of 0.7 to 1.4", "or a negative advantage and a ratio to `behavior` betw"),
        (summed, "several tokens", "384 times the loss: a sum over tokens in place of a mean"),
        (maximized, "one sequence of one token", "-1 times the loss: another sign"),
        (reads_masked, "sequences of different lengths", "the function reads tokens that do not"),
        (with_constant, "one sequence of one token", "a term without gradient"),
        (half_detached, "one sequence of one token", "holds something constant"),
    ],
)
def test_what_differs_is_named(fn: Callable[..., object], stage: str, how: str) -> None:
    verdict = found(fn)
    assert verdict.stage == stage
    assert how in " ".join(verdict.how)


def test_a_loss_of_pairs_gives_its_sides() -> None:
    def dpo(logprob_chosen, logprob_rejected, ref_chosen, ref_rejected, mask_chosen, mask_rejected):
        chosen = ((logprob_chosen - ref_chosen) * mask_chosen).sum(1)
        rejected = ((logprob_rejected - ref_rejected) * mask_rejected).sum(1)
        return -logsigmoid(0.1 * (chosen - rejected)).mean()

    assert found(dpo, "dpo").what == ""


def test_a_loss_of_values_is_differentiated_by_them() -> None:
    def value_loss(value, old, ret, mask):
        near = old + (value - old).clamp(-0.2, 0.2)
        error = torch.maximum((value - ret) ** 2, (near - ret) ** 2)
        return 0.5 * (error * mask).sum() / mask.sum()

    verdict = found(value_loss, "value_loss")
    assert (verdict.what, verdict.by) == ("", ("value",))


def test_parameters_have_other_names() -> None:
    def theirs(log_prob, old_log_prob, adv, mask, unused=None):
        return clipped(log_prob, old_log_prob, adv, mask)

    assert found(theirs, log_prob="logprob", old_log_prob="behavior").what == ""
    with pytest.raises(CallError, match="`log_prob` of the function is no field of"):
        found(theirs, old_log_prob="behavior")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda logprob: logprob[99], r"function failed: IndexError.*given logprob \[1, 1\]"),
        (lambda logprob: 1.0, "must return a scalar tensor, but returns float"),
        (lambda logprob: logprob, r"must return a scalar tensor, but returns shape \[1, 1\]"),
        (lambda mask: mask.sum(), "has no gradient by logprob"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused(fn, message: str) -> None:
    with pytest.raises(CallError, match=message):
        found(fn, "reinforce" if "shape" in message else PPO)


FILE = """\
import torch


def clipped(logprob, behavior, adv, mask, eps=0.2):
    ratio = (logprob - behavior).exp()
    gain = torch.minimum(ratio * adv[:, None], ratio.clamp(1 - eps, 1 + eps) * adv[:, None])
    return -(gain * mask).sum() / mask.sum()
"""
LOSS = """\
loss mine(
  logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool,
  eps: float = 0.2,
) {
  ratio = exp(clamp(logprob - behavior, -20.0, 20.0))
  minimize token_mean(-min(ratio * adv, clip(ratio, 1 - eps, 1 + eps) * adv), mask)
}
"""


def exit_code(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_reads_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "mine.forge").write_text(LOSS)
    file, against = str(tmp_path / "mine.forge"), f"{tmp_path / 'mine.py'}:clipped"
    assert exit_code(file, "--against", against, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
    assert exit_code(file, "--against", against, "--tolerance", "0") == 1
    assert exit_code(file, "--against", against.replace(":clipped", ":other")) == 2
    assert "has no function `other`" in capsys.readouterr().err
    for tolerance in ("-1", "nan", "1"):
        assert exit_code(file, "--against", against, "--tolerance", tolerance) == 2
        assert f"less than 1, not {tolerance}" in capsys.readouterr().err
    assert exit_code(file, "--against", "missing.py:f") == 2
    assert "no such file: missing.py" in capsys.readouterr().err
    assert exit_code(file, "--against", against, "--name", "eps") == 2
    assert exit_code(file, "--against", against, "--loss", "other") == 2
    assert "there is no loss `other`" in capsys.readouterr().err


def test_a_loss_of_a_flow_has_its_parameters(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    pipeline = Path(forgedsl.__file__).parent / "pipelines/dapo_math.forge"
    words = (str(pipeline), "--profile", "cpu", "--against", f"{tmp_path / 'mine.py'}:clipped")
    assert exit_code(*words) == 1
    assert "a positive advantage and a ratio to `behavior` between" in capsys.readouterr().out
