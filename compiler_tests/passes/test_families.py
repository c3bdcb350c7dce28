"""Families: published sizes, config.json there and back, names of the hub, what is refused."""

import json
from pathlib import Path

import pytest
from forge_texts import GRPO, plan_of

from forgedsl.families import registry
from forgedsl.families.base import Dims, Family, Unsupported, difference
from forgedsl.sizes.params import (
    active_params,
    adapter_params,
    layer_params,
    layers_of_stage,
    num_params,
    stage_params,
    vocab_params,
)

PUBLISHED = {
    ("qwen2", "0.5B"): 494_032_768, ("qwen2", "1.5B"): 1_543_714_304,
    ("qwen2", "3B"): 3_085_938_688, ("qwen2", "7B"): 7_615_616_512,
    ("qwen2", "14B"): 14_770_033_664, ("qwen2", "32B"): 32_763_876_352,
    ("qwen2", "72B"): 72_706_203_648,
    ("qwen3", "0.6B"): 596_049_920, ("qwen3", "1.7B"): 1_720_574_976,
    ("qwen3", "4B"): 4_022_468_096, ("qwen3", "8B"): 8_190_735_360,
    ("qwen3", "14B"): 14_768_307_200, ("qwen3", "32B"): 32_762_123_264,
    ("qwen3_moe", "30B-A3B"): 30_532_122_624, ("qwen3_moe", "235B-A22B"): 235_093_634_560,
    ("glm4_moe", "106B-A12B"): 110_468_824_832, ("glm4_moe", "355B-A32B"): 358_337_791_296,
    ("llama3", "1B"): 1_235_814_400, ("llama3", "3B"): 3_212_749_824,
    ("llama3", "8B"): 8_030_261_248, ("llama3", "70B"): 70_553_706_496,
    ("llama3", "405B"): 405_853_388_800,
    ("smollm2", "135M"): 134_515_008, ("smollm2", "360M"): 361_821_120,
    ("smollm2", "1.7B"): 1_711_376_384,
    ("smollm3", "3B"): 3_075_098_624,
    ("mistral", "7B"): 7_248_023_552, ("mistral", "12B"): 12_247_782_400,
    ("mistral", "24B"): 23_572_403_200,
    ("seed_oss", "36B"): 36_151_104_512, ("phi3", "14B"): 14_659_507_200,
}  # fmt: skip
"""parameters as the model cards' safetensors count them"""
SIZES = [(f, size) for f in registry.FAMILIES for size in f.sizes]


@pytest.mark.parametrize(("family", "size"), SIZES, ids=lambda v: getattr(v, "name", v))
def test_a_published_size_has_the_parameters_of_its_weights(family: Family, size: str) -> None:
    dims = family.sizes[size]
    assert num_params(dims) + not_counted(family, dims) == PUBLISHED[family.name, size]


def not_counted(family: Family, dims: Dims) -> int:
    """Parameters in published files that no run loads: the layer of GLM that predicts a further
    token, with an embedding and a head of its own. And the correction biases, which are not
    trained."""
    if family.name != "glm4_moe":
        return 0
    layer = layer_params(dims) + 2 * dims.hidden**2 + 3 * dims.hidden + 2 * vocab_params(dims)
    return layer + dims.experts * (dims.layers - dims.dense_first + 1)


def test_a_token_goes_through_the_active_experts_only() -> None:
    dims = registry.family("qwen3_moe").sizes["30B-A3B"]
    assert active_params(dims) == pytest.approx(3.35e9, rel=0.01)


@pytest.mark.parametrize(("size", "active"), [("106B-A12B", 12e9), ("355B-A32B", 32e9)])
def test_the_names_of_glm_say_how_many_parameters_are_active(size: str, active: float) -> None:
    """Without embedding and head."""
    dims = registry.family("glm4_moe").sizes[size]
    assert active_params(dims) - 2 * vocab_params(dims) == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("pp", [2, 3, 8])
def test_stages_have_the_layers_of_both_kinds(pp: int) -> None:
    for dims in registry.family("glm4_moe").sizes.values():
        stages = [stage_params(dims, stage, pp) for stage in range(pp)]
        assert sum(stages) == num_params(dims)
        dense = 3 * dims.hidden * (dims.dense_ffn - dims.ffn * (dims.experts + 1))
        lacking = dims.dense_first * (dense - dims.hidden * dims.experts)
        first = layers_of_stage(dims, 0, pp)
        assert stages[0] == len(first) * layer_params(dims) + lacking + vocab_params(dims)


@pytest.mark.parametrize(("family", "size"), SIZES, ids=lambda v: getattr(v, "name", v))
def test_a_config_json_says_all_of_a_model(family: Family, size: str) -> None:
    written = json.loads(json.dumps(family.write(family.sizes[size])))
    assert family.read(written) == family.sizes[size]


@pytest.mark.parametrize(
    ("name", "family", "size", "changes"),
    [
        ("Qwen/Qwen3-4B-Base", "qwen3", "4B", {}),
        ("Qwen/Qwen3-30B-A3B", "qwen3_moe", "30B-A3B", {}),
        ("zai-org/GLM-4.5-Air", "glm4_moe", "106B-A12B", {}),
        ("zai-org/GLM-4.5-Base", "glm4_moe", "355B-A32B", {}),
        ("zai-org/GLM-4.6", "glm4_moe", "355B-A32B", {"context": 202_752}),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2", "7B", {}),
        ("Qwen/Qwen2.5-Math-1.5B", "qwen2", "1.5B", {"context": 4096, "rope_theta": 1e4}),
        ("meta-llama/Llama-3.2-1B-Instruct", "llama3", "1B", {}),
        ("meta-llama/Meta-Llama-3-8B", "llama3", "8B", {"context": 8192, "rope_scaling": None}),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2", "135M", {}),
        ("HuggingFaceTB/SmolLM3-3B", "smollm3", "3B", {}),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral", "12B", {}),
        (
            "mistralai/Devstral-Small-2505",
            "mistral",
            "24B",
            {"context": 131_072, "rope_theta": 1e9},
        ),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", "seed_oss", "36B", {}),
        ("microsoft/phi-4", "phi3", "14B", {}),
    ],
)
def test_names_on_the_hub(name: str, family: str, size: str, changes: dict) -> None:
    found = registry.by_hub_name(name)
    expected = registry.family(family).dims(size, changes)
    assert found == (registry.family(family), expected)


def test_a_name_that_nobody_published_is_not_guessed() -> None:
    assert registry.by_hub_name("somebody/Qwen3-4B-tuned") is None


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 80,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "gemma3_text"}, 'models of type "gemma3_text"'),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            'rotary embeddings of type "yarn"',
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"partial_rotary_factor": 0.75}, "partial_rotary_factor = 0.75"),
        ({"model_type": "phi3", "rope_scaling": {"rope_type": "longrope"}}, '"longrope"'),
        ({"model_type": "phi3", "sliding_window": 2047}, "sliding_window = 2047"),
        ({"model_type": "glm4_moe"}, "no intermediate_size|no moe_intermediate_size"),
        ({"model_type": "glm4_moe", "n_group": 8}, "n_group = 8"),
        ({"model_type": "smollm3", "no_rope_layers": [0, 1]}, "not every n-th layer"),
    ],
)
def test_what_is_not_carried_out_is_refused(changes: dict, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        registry.by_config(LLAMA | changes)


def test_what_glm_leaves_out_of_its_config_is_what_transformers_assumes() -> None:
    family = registry.family("glm4_moe")
    full = family.write(family.dims(None, {"layers": 2, "hidden": 64, "heads": 2, "vocab": 80,
                                           "experts": 8, "active": 2, "head_dim": 32}))  # fmt: skip
    optional = {
        "rope_parameters", "rms_norm_eps", "attention_bias", "use_qk_norm", "norm_topk_prob",
        "n_shared_experts", "first_k_dense_replace", "routed_scaling_factor",
        "num_nextn_predict_layers", "tie_word_embeddings",
    }  # fmt: skip
    few = {key: value for key, value in full.items() if key not in optional} | {"rope_theta": 1e4}
    dims = family.read(few | {"num_nextn_predict_layers": 1})
    assert (dims.eps, dims.qkv_bias, dims.qk_norm, dims.normalized) == (1e-5, False, False, True)
    assert (dims.shared, dims.dense_first, dims.route_scale, dims.rotated) == (1, 1, 1.0, 0.5)
    assert dims.corrected


def test_the_old_keys_of_a_stretched_rotation_are_read() -> None:
    old = {"rope_theta": 5e5, "rope_scaling": {
        "type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}}  # fmt: skip
    new = registry.family("llama3").sizes["1B"]
    dims = registry.by_config(LLAMA | old)[1]
    assert (dims.rope_theta, dims.rope_scaling) == (new.rope_theta, new.rope_scaling)


# ---- as the compiler meets them


def planned(tmp_path: Path, config: dict, **model: object) -> list:
    """Diagnostics of a small program over a local model with this config.json."""
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    start = GRPO.index("model policy")
    settings = ", ".join(f"{key} = {value}" for key, value in model.items())
    line = f'model policy {{ source = local("m"), dtype = f32, {settings} }}\n'
    text = GRPO[:start] + line + GRPO[GRPO.index("\n", start) + 1 :]
    _, found = plan_of(text, base_dir=tmp_path)
    return [d for d in found if d.code == "P213"]


def test_a_family_that_is_not_here_is_refused_with_those_that_are(tmp_path: Path) -> None:
    (found,) = planned(tmp_path, LLAMA | {"model_type": "gemma2"})
    assert "gemma2" in found.message
    assert all(f.name in found.help for f in registry.FAMILIES)


def test_an_arch_that_is_not_the_models_is_refused(tmp_path: Path) -> None:
    (found,) = planned(tmp_path, LLAMA, arch='llama3("1B")')
    assert "layers 2, not 16" in found.message


def test_a_context_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    (found,) = planned(tmp_path, LLAMA, context=128)
    assert "64 positions" in found.message


def test_an_engine_may_have_more_ranks_than_the_model_has_kv_heads() -> None:
    start = GRPO.index("model policy")
    arch = "qwen3(layers = 2, hidden = 64, heads = 2, kv_heads = 1, head_dim = 32, vocab = 64)"
    line = f'model policy {{ source = random(1), arch = {arch}, tokenizer = local("t") }}\n'
    text = GRPO[:start] + line + GRPO[GRPO.index("\n", start) + 1 :]
    _, found = plan_of(text, "generator.parallel.tp=2", "generator.procs=2")
    assert [d for d in found if "kv heads" in d.message] == []


TOY = Family(
    name="toy",
    doc="a family from elsewhere",
    model_type="toy_lm",
    architecture="ToyForCausalLM",
    sizes={"1M": Dims(layers=2, hidden=64, heads=4, kv_heads=4, vocab=80, context=64, ffn=96)},
)


def test_a_family_from_outside_is_found_by_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, TOY))
    assert planned(tmp_path, TOY.write(TOY.sizes["1M"])) == []
    assert registry.by_config(TOY.write(TOY.sizes["1M"])) == (TOY, TOY.sizes["1M"])


def test_a_difference_names_what_differs() -> None:
    ours = TOY.sizes["1M"]
    assert difference(ours, TOY.dims("1M", {"layers": 3})) == "layers 3, not 2"


def test_adapters_leave_the_optimizer_their_own_parameters_only() -> None:
    made, _ = plan_of(GRPO, "trainer.lora.rank=16")
    assert made is not None
    train = made.memory.rank("trainer").phases[2].items
    found = {item.name: item.bytes for item in train}
    share = adapter_params(registry.family("qwen3").sizes["1.7B"], 16) / 4
    state = found["adapters f32"] + found["AdamW moments f32"] + found["gradients f32"]
    assert state == pytest.approx(16 * share)


def test_alpha_without_a_rank_is_an_error() -> None:
    (found,) = [d for d in plan_of(GRPO, "trainer.lora.alpha=8")[1] if d.code == "F113"]
    assert "lora.rank" in found.message


@pytest.mark.parametrize(
    ("family", "dims", "why"),
    [
        ("qwen3", "heads = 5, kv_heads = 2", "not a multiple of kv_heads = 2"),
        ("qwen3", "heads = 4, head_dim = 7", "odd"),
        ("qwen3_moe", "heads = 4, experts = 4, active = 5", "active = 5 is not within experts = 4"),
        ("glm4_moe", "heads = 4, head_dim = 18, experts = 4, active = 2", "0.5 of head_dim = 18"),
        ("glm4_moe", "heads = 4, experts = 4, active = 2, dense_first = 2",
         "dense_first = 2 leaves none of 2 layers with experts"),
    ],
)  # fmt: skip
def test_dimensions_that_make_no_model_are_refused(family: str, dims: str, why: str) -> None:
    start = GRPO.index("model policy")
    arch = f"{family}(layers = 2, hidden = 64, vocab = 80, {dims})"
    line = f'model policy {{ source = random(1), arch = {arch}, tokenizer = local("t") }}\n'
    _, found = plan_of(GRPO[:start] + line + GRPO[GRPO.index("\n", start) + 1 :])
    (found,) = [d for d in found if d.code == "P213"]
    assert why in found.message
    assert "model_type" not in found.help
