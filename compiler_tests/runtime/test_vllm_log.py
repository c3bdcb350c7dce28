"""What a weight sync leaves in the log of a generator: warnings of what has weights, only."""

import importlib.util
import logging
import re
from pathlib import Path

import pytest

from forgedsl_runtime.services.vllm.upstream.adapter import INPUTS_LOGGER, OTHER_TOKENIZER
from forgedsl_runtime.services.vllm.upstream.loading import (
    NOT_LOADED,
    RELOAD_LOGGER,
    silence_reload_warnings,
)


@pytest.fixture
def warned():
    """Class names of layers -> those that are still warned of."""
    logger, shown = logging.getLogger(RELOAD_LOGGER), []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())
    logger.addHandler(handler)
    kept = list(logger.filters)

    def of(*names: str) -> list[str]:
        for name in names:
            logger.warning(NOT_LOADED, name)
        logger.warning("Allocating %.1f MB", 3.0)
        return shown

    yield of
    logger.removeHandler(handler)
    logger.filters = kept


LAYERS = ("Llama3RotaryEmbedding", "ParallelLMHead", "QKVParallelLinear")


def test_a_tied_head_and_a_computed_table_have_nothing_to_load(warned) -> None:
    silence_reload_warnings(is_tied=True)
    assert warned(*LAYERS) == ["QKVParallelLinear: Failed to load weights", "Allocating 3.0 MB"]


def test_a_head_of_its_own_that_is_not_loaded_is_a_warning(warned) -> None:
    silence_reload_warnings(is_tied=False)
    assert warned(*LAYERS)[0] == "ParallelLMHead: Failed to load weights"


def test_vllm_still_warns_of_other_tokenizers_in_these_words() -> None:
    root = importlib.util.find_spec("vllm")
    if root is None or root.origin is None:
        pytest.skip("vllm is not installed")
    path = Path(root.origin).parent.joinpath(*INPUTS_LOGGER.split(".")[1:]).with_suffix(".py")
    said = "".join(re.findall(r'^ +"(.*)"$', path.read_text(), re.MULTILINE))
    assert OTHER_TOKENIZER in said


def test_vllm_still_says_so() -> None:
    root = importlib.util.find_spec("vllm")
    if root is None or root.origin is None:
        pytest.skip("vllm is not installed")
    path = Path(root.origin).parent.joinpath(*RELOAD_LOGGER.split(".")[1:]).with_suffix(".py")
    assert f'logger.warning("{NOT_LOADED}", layer.__class__.__name__)' in path.read_text()
