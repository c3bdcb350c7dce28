"""What losses, functions, Sessions and batches show in a notebook, and what a notebook is not."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path

import pytest

import forgedsl
from forgedsl import notebook
from forgedsl.python.results import begin
from forgedsl_runtime.data_types import Batch, Sample

ROOT = Path(__file__).parents[2]
DAPO = ROOT / "pipelines" / "dapo_math.forge"
SUMS = re.search(r"```forge sums.forge\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
assert SUMS is not None
TEXT = SUMS[1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def pipeline(tmp_path: Path) -> forgedsl.Pipeline:
    (tmp_path / "sums.forge").write_text(TEXT, encoding="utf-8")
    return forgedsl.load(tmp_path / "sums.forge")


def test_a_loss_shows_its_mathematics(pipeline: forgedsl.Pipeline) -> None:
    loss = pipeline.loss()
    assert repr(loss).startswith("<loss clipped(logits, labels, mask, behavior, adv) -> loss, ")
    html = loss._repr_html_()
    assert "gain = min(ratio * adv, clamp(ratio, 0.8, 1.2) * adv)" in html
    assert "d loss / d logprob" in html


@pytest.mark.parametrize("name", ["rl.mixed", "rl_mixed"])
def test_a_function_shows_signature_doc_and_formula(name: str) -> None:
    mixed = forgedsl.load(DAPO, profile="cpu").function(name)
    assert repr(mixed) == "<filter rl.mixed(score: [G] f32) -> bool>"
    assert mixed.__doc__ is not None
    assert mixed.__doc__.startswith("DAPO's dynamic sampling")
    html = mixed._repr_html_()
    assert "dynamic sampling" in html
    assert "sqrt(" in html
    assert mixed([1.0, 0.0]) is True


def test_a_session_shows_models_handles_and_steps(
    pipeline: forgedsl.Pipeline, tmp_path: Path
) -> None:
    html = pipeline.session(tmp_path / "run")._repr_html_()
    for some in (
        "not open", "local(models/tiny_math), f32", "Trainer of policy on cpu, version 0: ",
        "optim_step", "Scorer: score", "none yet",
    ):  # fmt: skip
        assert some in html
    assert not (tmp_path / "run").exists()


def test_a_batch_shows_sizes_and_no_tokens() -> None:
    samples = [
        Sample(
            token_ids=[77_777] * size, num_prompt=3, mask=[True] * (size - 3),
            token_fields={"behavior": [0.25] * (size - 3)}, sequence_fields={"adv": 1.0},
        )
        for size in (5, 900)
    ]  # fmt: skip
    batch = Batch(samples=samples, groups=[0], rewards=[1.0, 0.0])
    told = "<Batch of 2 samples: 905 tokens, 899 trained; behavior [2, T], adv [2]>"
    assert repr(batch) == told
    html = batch._repr_html_()
    assert "5 to 900, prompts included" in html
    assert "0.5" in html
    assert "77777" not in html
    assert repr(Batch(samples=[])) == "<Batch of 0 samples: 0 tokens, 0 trained; no fields>"


def test_a_notebook_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert notebook.can_redraw(Terminal())
    assert not notebook.can_redraw(io.StringIO())
    monkeypatch.setenv("JPY_PARENT_PID", "1")  # a cell with `!forgec run` has a pseudo-terminal
    assert not notebook.can_redraw(Terminal())


def test_the_advice_of_tqdm_to_install_widgets_is_silent() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        notebook.quiet_widgets()
        warnings.warn("IProgress not found. Please update jupyter and ipywidgets.", stacklevel=1)
        warnings.warn("another", stacklevel=1)
    assert [str(each.message) for each in shown] == ["another"]


def test_the_log_of_a_run_that_a_notebook_starts_has_no_colours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from forgedsl.cli.run_lock import claim

    monkeypatch.setenv("FORCE_COLOR", "1")
    claim(tmp_path)
    running = begin(tmp_path, ("nope.forge",), None)
    with pytest.raises(forgedsl.PipelineError):
        running.result()
    assert "nope.forge" in running.log()
    assert "\x1b" not in running.log()


def test_a_loss_that_does_not_exist_is_one_error(pipeline: forgedsl.Pipeline) -> None:
    with pytest.raises(
        forgedsl.PipelineError, match=r"^there is no loss `dappo`; did you mean `da"
    ) as shipped:
        forgedsl.compile_loss("dappo")
    with pytest.raises(
        forgedsl.PipelineError, match=r"^there is no loss 'cliped'; did you mean "
    ) as own:
        pipeline.loss("cliped")
    for raised in (shipped, own):
        error = raised.value
        assert error.__cause__ is None
        assert error.__context__ is None or error.__suppress_context__
    with pytest.raises(forgedsl.PipelineError, match="the name of a loss is a text, not 3"):
        pipeline.loss(3)  # type: ignore[arg-type]


def test_mistakes_in_the_text_of_a_loss_are_shown_at_their_place() -> None:
    text = (
        "loss a(logprob: diff [B, T] f32, mask: [B, T] bool) {\n  minimize token_mean(x, mask)\n}\n"
    )
    with pytest.raises(
        forgedsl.PipelineError, match=r"error\[F101\]: undefined name `x`\n --> <loss>:2"
    ):
        forgedsl.compile_loss(text)
