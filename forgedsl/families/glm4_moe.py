"""GLM-4.5, GLM-4.5-Air and GLM-4.6 (2508.06471): experts beside a shared one, after dense layers.

Half of each head rotates. Published files have one more layer, which predicts the token after the
next one (`num_nextn_predict_layers`); it is neither loaded nor exported.
"""

from forgedsl.families.base import Dims, Family


def _size(
    layers: int, hidden: int, ffn: int, experts: int, dense_first: int, dense_ffn: int,
    route_scale: float, *, qk_norm: bool,
) -> Dims:  # fmt: skip
    return Dims(
        layers=layers,
        hidden=hidden,
        heads=96,
        kv_heads=8,
        vocab=151_552,
        context=131_072,
        ffn=ffn,
        experts=experts,
        active=8,
        normalized=True,
        shared=1,
        dense_first=dense_first,
        dense_ffn=dense_ffn,
        corrected=True,
        route_scale=route_scale,
        qkv_bias=True,
        qk_norm=qk_norm,
        eps=1e-5,
        rotated=0.5,
    )


FAMILY = Family(
    name="glm4_moe",
    doc="GLM-4.5, GLM-4.5-Air and GLM-4.6",
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    sizes={
        "106B-A12B": _size(46, 4096, 1408, 128, 1, 10_944, 1.0, qk_norm=False),
        "355B-A32B": _size(92, 5120, 1536, 160, 3, 12_288, 2.5, qk_norm=True),
    },
    hub=(
        (r"zai-org/GLM-4\.5-Air(?:-Base)?", {"size": "106B-A12B"}),
        (r"zai-org/GLM-4\.5(?:-Base)?", {"size": "355B-A32B"}),
        (r"zai-org/GLM-4\.6", {"size": "355B-A32B", "context": 202_752}),
    ),
    ends=("<|user|>", "<|observation|>", "<|endoftext|>"),
    tokenizer="glm4",
    defaults={
        "tied": False,
        "normalized": True,
        "shared": 1,
        "dense_first": 1,
        "corrected": True,
        "qkv_bias": True,
        "eps": 1e-5,
        "rotated": 0.5,
    },
    fixed={"hidden_act": "silu", "n_group": 1, "topk_group": 1},
    written={"num_nextn_predict_layers": 0},
    absent={"qkv_bias": False, "qk_norm": False},
    further_keys={"qkv_bias": "attention_bias", "qk_norm": "use_qk_norm"},
    with_shared=True,
    remark=(
        "The first layers have an MLP, all others experts and a shared one. The layer for "
        "multi-token prediction (`num_nextn_predict_layers`) is neither loaded, trained nor "
        "exported. The correction bias of the router is loaded, published and exported in float32, "
        "and never trained; like that layer, it is not counted in the parameters."
    ),
)
