"""`engine.max_running` is bounded by the tokens of a step, as vLLM demands it."""

from pathlib import Path

import pytest
from forge_texts import GRPO

from forgedsl.lint.engine import lint_source
from forgedsl.sizes.memory import BATCHED_TOKENS
from forgedsl.source import SourceFile

WHERE = {"gpu": "", "cpu": "device = cpu, "}


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("above", [0, 1])
def test_an_engine_decodes_no_more_completions_than_a_step_has_tokens(
    device: str, above: int
) -> None:
    running = BATCHED_TOKENS[device] + above
    text = GRPO.replace(
        "service generator : vllm(policy) {",
        f"service generator : vllm(policy) {{ {WHERE[device]}engine.max_running = {running}, ",
    )
    assert str(running) in text
    found = lint_source(SourceFile("t.forge", text), Path()).diagnostics
    told = [d.message for d in found if d.code == "P216"]
    wanted = (
        f"`engine.max_running = {running}` of `generator` is not supported on a {device.upper()}"
    )
    assert told == ([wanted] if above else [])


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_vllm_draws_the_line_there(device: str) -> None:
    scheduler = pytest.importorskip("vllm.config.scheduler")
    tokens = BATCHED_TOKENS[device]
    given = {"max_model_len": 256, "is_encoder_decoder": False, "max_num_batched_tokens": tokens}
    scheduler.SchedulerConfig(max_num_seqs=tokens, **given)
    with pytest.raises(ValueError, match="greater than or equal to max_num_seqs"):
        scheduler.SchedulerConfig(max_num_seqs=tokens + 1, **given)
