"""`loss hand(...) = mine.Clip(...)`: an `nn.Module` as a loss, against the same in the language."""

import pytest
import torch
from forge_texts import GRPO, changed, edited

from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.losses.pymodule import ModuleError
from forgedsl_runtime.losses.trial import failure

CLASS = """
import torch
from torch import nn

class Clip(nn.Module):
    reports = ("clipped",)

    def __init__(self, low: float, high: float = 0.28) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, logprob, behavior, adv, seq_id, num_tokens):
        ratio, adv = torch.exp(logprob - behavior), adv[seq_id]
        bounded = ratio.clamp(1 - self.low, 1 + self.high)
        clipped = ((ratio != bounded).to(ratio.dtype)).sum() / num_tokens
        return -torch.minimum(ratio * adv, bounded * adv).sum() / num_tokens, {"clipped": clipped}

class Helper:
    pass
"""
LOSSES = """\
loss hand(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32) = mine.Clip(low = low)
loss told(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  ratio = exp(logprob - behavior)
  bounded = clip(ratio, 1 - low, 1.28)
  minimize token_mean(-min(ratio * adv, bounded * adv), mask)
  report clipped = token_mean(ratio != bounded, mask)
}
"""
TEXT = changed(
    GRPO[: GRPO.index("loss grpo(")] + LOSSES + GRPO[GRPO.index("flow train") :],
    ("param beta : float = 0.02", 'import python "losses.py" as mine\nparam low : float = 0.2'),
    ("loss = grpo", "loss = hand"),
    ("  ref_lp  = reference.logprobs(rollout)\n", ""),
    ("ref = ref_lp, ", ""),
)
STEP = "trainer.step(batch, loss = hand)"


def spec(folder, *changes, code=CLASS):
    (folder / "losses.py").write_text(code)
    made, problems = edited(TEXT, *changes, folder=folder)
    assert problems == []
    return next(iter(made.job.losses.values()))


@pytest.fixture
def batch():
    """Two sequences of five tokens, of which some do not count."""
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 5, 11, generator=draw, dtype=torch.float64)
    labels = torch.randint(11, (2, 5), generator=draw)
    now = logits.log_softmax(-1).gather(2, labels.unsqueeze(2)).squeeze(2)
    return {
        "logits": logits,
        "labels": labels,
        "mask": torch.tensor([[1, 1, 0, 1, 1], [1, 0, 1, 1, 0]], dtype=torch.bool),
        "behavior": now + 0.4 * torch.randn(2, 5, generator=draw, dtype=torch.float64),
        "adv": torch.tensor([0.7, -1.3], dtype=torch.float64),
    }


def computed(loss, batch, **more):
    logits = batch["logits"].clone().requires_grad_()
    out = loss(**{**batch, **more, "logits": logits})
    out.loss.backward()
    return out, logits.grad


def test_it_computes_what_the_same_in_the_language_does(tmp_path, batch):
    ours, gradient = computed(LossFunction.from_job(spec(tmp_path), "torch"), batch)
    other = spec(tmp_path, (STEP, STEP.replace("hand", "told")))
    told, expected = computed(LossFunction.from_job(other, "torch"), batch)
    assert ours.metrics["clipped"] > 0
    for name in ("clipped", "entropy"):
        torch.testing.assert_close(ours.metrics[name], told.metrics[name], rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.loss, told.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=1e-15)


def test_parts_of_a_step_add_up_and_one_without_tokens_is_nothing(tmp_path, batch):
    loss = LossFunction.from_job(spec(tmp_path), "torch")
    whole, gradient = computed(loss, batch)
    parts = [computed(loss, {k: v[i : i + 1] for k, v in batch.items()}, num_tokens=7.0)
             for i in (0, 1)]  # fmt: skip
    torch.testing.assert_close(sum(out.loss for out, _ in parts), whole.loss)
    torch.testing.assert_close(torch.cat([part for _, part in parts]), gradient)
    none, nothing = computed(loss, {**batch, "mask": torch.zeros(2, 5, dtype=torch.bool)},
                             num_tokens=7.0)  # fmt: skip
    assert (none.loss.item(), nothing.abs().max().item()) == (0.0, 0.0)


def test_a_number_of_sequences_is_asked_of_the_whole_step(tmp_path, batch):
    code = CLASS.replace("num_tokens", "num_sequences")
    loss = LossFunction.from_job(spec(tmp_path, code=code), "torch")
    with pytest.raises(TypeError, match="also needs num_sequences of the whole step"):
        computed(loss, batch, num_tokens=7.0)
    once, _ = computed(loss, batch)
    half, _ = computed(loss, batch, num_tokens=7.0, num_sequences=4.0)
    torch.testing.assert_close(half.loss * 2, once.loss)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("logprob - behavior", "logprob - other", "`Clip` of losses.py failed in line 13: NameErr"),
        ("return -torch", "return torch.ones(3) - torch", r"returns \[3\], but a loss must be a"),
        ("torch.exp(logprob -", "torch.exp(logprob.detach() -", "has no gradient for logprob"),
        ("(\"clipped\",)", "(\"clip\",)", r"returns reports \['clipped'\], but its class declares"),
        ("self.low, self.high = low, high", "self.low, self.high = low, high\n"
         "        self.w = nn.Linear(2, 2)", r"has parameters \(w.weight, w.bias\)"),
        ("super().__init__()", "super().__init__()\n        raise OSError('no file')",
         "`Clip` of losses.py cannot be made in line 10: OSError: no file"),
    ],
)  # fmt: skip
def test_what_is_no_loss_says_so_with_its_line(tmp_path, old, new, message):
    assert old in CLASS
    made = spec(tmp_path, code=CLASS.replace(old, new))
    with pytest.raises(ModuleError, match=message):
        raise ModuleError(failure(made))


def test_a_loss_that_is_right_passes_the_trial(tmp_path):
    assert failure(spec(tmp_path)) == ""


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (("mine.Clip(low = low)", "mine.Clipp(low = low)"), "X801", "has no such class `Clipp`"),
        (("mine.Clip(low = low)", "mine.Helper()"), "X801", "has no such class `Helper`"),
        (("mine.Clip(low = low)", "mine.Clip()"), "F114", "`low`"),
        (("mine.Clip(low = low)", "mine.Clip(low = low, eps = 1.0)"), "F114", "`eps`"),
        (("adv: [B] f32) = ", "adv: [B] f32, ref: [B, T] f32) = "), "X802",
         "`forward` of `Clip` has no parameter `ref`"),
        ((", adv: [B] f32) = ", ") = "), "X802",
         "`forward` of `Clip` needs `adv`, which is not declared"),
        ((", adv: [B] f32) = ", ", adv: [B] f32, eps: float = 0.1) = "), "X802",
         "`eps` is a number, which a Python loss takes as argument of its class"),
        (("loss hand(logprob: diff [B, T] f32, ", "loss hand("), "X802",
         "`forward` of `Clip` needs `logprob`"),
    ],
)  # fmt: skip
def test_a_class_that_does_not_fit_is_told(tmp_path, change, code, message):
    (tmp_path / "losses.py").write_text(CLASS)
    made, problems = edited(TEXT, change, folder=tmp_path)
    assert made is None
    assert problems[0][0] == code
    assert message in " ".join(said for _, said in problems)


@pytest.mark.parametrize("name", ["tokens", "loss", "entropy"])
def test_a_class_whose_report_has_a_reserved_name_is_told(tmp_path, name):
    (tmp_path / "losses.py").write_text(CLASS.replace('("clipped",)', f'("{name}",)'))
    made, problems = edited(TEXT, folder=tmp_path)
    assert made is None
    assert problems[0][0] == "X802"
    assert f"named `{name}`: " in problems[0][1]


def test_another_text_of_the_file_is_another_loss(tmp_path):
    one, two = spec(tmp_path), spec(tmp_path, code=CLASS + "\n# changed\n")
    assert one.tree != two.tree
    assert one.kernels == ""
