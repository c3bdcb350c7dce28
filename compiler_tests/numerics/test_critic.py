"""GAE, returns, the value loss and Bradley-Terry against literal implementations."""

from pathlib import Path

import pytest
import torch
from tolerance import EXACT

import forgedsl
import forgedsl.pipelines
from forgedsl.api import load_text
from forgedsl.emit.python import emit_program
from forgedsl_runtime.tensor_calls import call_on_tensors

PIPELINE = Path(forgedsl.pipelines.__file__).parent / "ppo_critic.forge"
MASKS = [[1, 1, 0, 0, 1, 1], [1, 0, 1], [1], [0, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0]]


def called(call, **given):
    """What the program of a pipeline makes of an advantage, given lists as the controller has."""
    text = PIPELINE.read_text().replace("rl.whitened_gae(score, values, rollout.mask, lam = lam)",
                                        f"rl.{call}")  # fmt: skip
    loaded = load_text(text, "p.forge", folder=PIPELINE.parent, profile="cpu")
    names = {}
    exec(emit_program(loaded.checked, loaded.sources), names)
    name = next(n for n in names if n.startswith(f"advantage_rl_{call.partition('(')[0]}_g"))
    return call_on_tensors(names[name], {**given, "group": list(range(len(MASKS)))})


def batch(seed=0):
    rng = torch.Generator().manual_seed(seed)
    masks = [[bool(own) for own in mask] for mask in MASKS]
    values = [torch.randn(len(mask), generator=rng).double().tolist() for mask in masks]
    return {"score": torch.randn(len(MASKS), generator=rng).tolist(), "values": values,
            "mask": masks}  # fmt: skip


def doubles(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def literal_gae(score, values, mask, gamma, lam):
    """Equations 11 and 16 of 1506.02438 over the tokens that the policy wrote, written out."""
    real = [t for t, own in enumerate(mask) if own]
    found = [0.0] * len(mask)
    for i, t in enumerate(real):
        for k, u in enumerate(real[i:]):
            later = values[real[i + k + 1]] if i + k + 1 < len(real) else 0.0
            delta = (score if u == real[-1] else 0.0) + gamma * later - values[u]
            found[t] += (gamma * lam) ** k * delta
    return found


@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (1.0, 0.5), (0.9, 1.0), (1.0, 0.0)])
def test_gae_is_the_sum_of_weighted_differences(gamma, lam):
    given = batch()
    got = called(f"gae(score, values, rollout.mask, gamma = {gamma}, lam = {lam})", **given)
    rows = zip(*given.values(), strict=True)
    want = [literal_gae(*row, gamma, lam) for row in rows]
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(doubles(mine), doubles(theirs), **EXACT)


def test_with_both_weights_one_it_is_what_is_still_to_come_minus_the_value():
    given = batch(1)
    got = called("gae(score, values, rollout.mask, gamma = 1.0, lam = 1.0)", **given)
    for mine, score, values, mask in zip(got, *given.values(), strict=True):
        want = [score - value if own else 0.0 for value, own in zip(values, mask, strict=True)]
        torch.testing.assert_close(doubles(mine), doubles(want), **EXACT)


def test_returns_are_advantages_and_values():
    given = batch(2)
    adv = called("gae(score, values, rollout.mask, gamma = 0.99, lam = 0.95)", **given)
    got = called("returns(score, values, rollout.mask, gamma = 0.99, lam = 0.95)", **given)
    for mine, theirs, values in zip(got, adv, given["values"], strict=True):
        want = doubles(theirs) + doubles(values)
        torch.testing.assert_close(doubles(mine), want, **EXACT)


def test_answers_that_were_cut_go_on_from_the_value_of_their_last_token():
    given, cut = batch(6), [row % 2 == 0 for row in range(len(MASKS))]
    call = (
        "bootstrapped_gae(score, values, rollout.mask, rollout.truncated, gamma = 0.9, lam = 0.8)"
    )
    got = called(call, **given, cut=cut)
    ret = called(call.replace("_gae", "_returns"), **given, cut=cut)
    rows = zip(*given.values(), cut, got, ret, strict=True)
    for score, values, mask, was_cut, mine, learnt in rows:
        last = max(t for t, own in enumerate(mask) if own)
        behind = 0.9 * values[last] if was_cut else 0.0
        want = doubles(literal_gae(score + behind, values, mask, 0.9, 0.8))
        torch.testing.assert_close(doubles(mine), want, **EXACT)
        own = torch.tensor(mask)
        torch.testing.assert_close(doubles(learnt)[own], (want + doubles(values))[own], **EXACT)


def test_where_nothing_was_cut_they_are_the_same():
    given = batch(7)
    cut, plain = [False] * len(MASKS), "(score, values, rollout.mask, gamma = 0.9, lam = 0.8)"
    call = "whitened_bootstrapped_gae" + plain.replace("mask,", "mask, rollout.truncated,")
    got = called(call, **given, cut=cut)
    want = called(f"whitened_gae{plain}", **given)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(doubles(mine), doubles(theirs), **EXACT)


def test_whitened_over_the_tokens_of_the_step():
    given = batch(3)
    adv = called("gae(score, values, rollout.mask, gamma = 0.99, lam = 0.95)", **given)
    got = called("whitened_gae(score, values, rollout.mask, gamma = 0.99, lam = 0.95)", **given)
    own = [value for row, mask in zip(adv, given["mask"], strict=True)
           for value, real in zip(row, mask, strict=True) if real]  # fmt: skip
    kept = [value for row, mask in zip(got, given["mask"], strict=True)
            for value, real in zip(row, mask, strict=True) if real]  # fmt: skip
    tokens = doubles(own)
    want = (tokens - tokens.mean()) / torch.sqrt(tokens.var() + 1e-8)
    torch.testing.assert_close(doubles(kept), want, **EXACT)


def test_gae_of_rewards_of_turns_skips_what_the_policy_did_not_write():
    mask = [bool(own) for own in MASKS[0]]
    rest = len(MASKS) - 1
    given = {
        "reward": [[0.0, 0.1, 0.0, 0.0, 0.0, 1.0], *[[0.0]] * rest],
        "values": [[0.5, 0.4, 9.0, 9.0, 0.3, 0.6], *[[0.0]] * rest],
        "mask": [mask, *[[True]] * rest],
    }
    call = "turn_gae(values, values, rollout.mask, gamma = 0.99, lam = 0.95)"
    got = [value for value, own in zip(called(call, **given)[0], mask, strict=True) if own]
    want = [0.485997, 0.627323, 0.670200, 0.400000]
    torch.testing.assert_close(doubles(got), doubles(want), rtol=0, atol=1e-6)


def test_returns_of_turns_are_what_is_still_to_come_whitened_over_the_step():
    given = {
        "reward": [[0.0, 1.0, 0.0, 0.0, 0.0, 2.0], *([0.0] * len(m) for m in MASKS[1:])],
        "mask": batch()["mask"],
    }
    got = called("turn_returns(values, rollout.mask, gamma = 1.0)", **given)
    left = [3.0, 3.0, 2.0, 2.0] + [0.0] * sum(map(sum, MASKS[1:]))
    want = (doubles(left) - doubles(left).mean()) / torch.sqrt(doubles(left).var() + 1e-8)
    kept = [value for row, mask in zip(got, given["mask"], strict=True)
            for value, real in zip(row, mask, strict=True) if real]  # fmt: skip
    torch.testing.assert_close(doubles(kept), want, **EXACT)


def test_the_value_loss_is_half_the_larger_of_two_squares():
    rng = torch.Generator().manual_seed(4)
    value, old, ret = (torch.randn(5, 7, generator=rng).double() for _ in range(3))
    mask = torch.rand(5, 7, generator=rng) > 0.3
    value.requires_grad_()
    loss = forgedsl.compile_loss("value_loss", params={"clip": 0.2})
    got = loss.of_values(value=value, old=old, ret=ret, mask=mask).loss
    near = torch.minimum(torch.maximum(value, old - 0.2), old + 0.2)
    want = 0.5 * torch.maximum((value - ret) ** 2, (near - ret) ** 2)[mask].mean()
    torch.testing.assert_close(got, want, **EXACT)
    ours, theirs = (torch.autograd.grad(x, value)[0] for x in (got, want))
    torch.testing.assert_close(ours, theirs, **EXACT)


def test_parts_of_a_step_add_up():
    rng = torch.Generator().manual_seed(5)
    value, old, ret = (torch.randn(4, 3, generator=rng).double() for _ in range(3))
    loss = forgedsl.compile_loss("value_loss")
    whole = loss.of_values(value=value, old=old, ret=ret).loss
    parts = [
        loss.of_values(value=value[i:i + 2], old=old[i:i + 2], ret=ret[i:i + 2],
                       num_tokens=12, num_sequences=4).loss
        for i in (0, 2)
    ]  # fmt: skip
    torch.testing.assert_close(sum(parts), whole, **EXACT)


def test_bradley_terry_prefers_by_the_last_token():
    value = torch.tensor([9.0, 1.2, 0.4, -0.3, 7.0, 0.5, 2.0, 1.9], requires_grad=True)
    seq_id = torch.tensor([0, 0, 1, 2, 3, 3, 4, 5])
    last = torch.tensor([False, True, True, True, False, True, True, True])
    loss = forgedsl.compile_loss("bradley_terry")
    out = loss.of_values(value=value, last=last, seq_id=seq_id)
    margins = torch.tensor([1.2 - 0.4, -0.3 - 0.5, 2.0 - 1.9])
    torch.testing.assert_close(out.loss, -torch.nn.functional.logsigmoid(margins).mean())
    assert out.metrics["accuracy"].item() == pytest.approx(2 / 3)


def test_a_loss_of_values_alone_says_how_it_is_called():
    loss = forgedsl.compile_loss("value_loss")
    with pytest.raises(TypeError, match=r"loss\.of_values\(value=\.\.\.\)"):
        loss.linear(hidden=torch.ones(2, 3), weight=torch.ones(4, 3),
                    labels=torch.zeros(2, dtype=torch.int64))  # fmt: skip
