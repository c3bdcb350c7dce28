"""Facts of a model family for the compiler, and the dimensions of the decoder that all families
share.

    config.json  --read-->  Dims  --write-->  config.json        (one model)
    Family: names, published sizes, names on the hub, unsupported values of config.json

`Dims` contains everything that affects logits; the runtime builds its model from it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forgedsl.records import dataclass, field, replace


class Unsupported(Exception):
    """A config.json needs a feature that no family supports; the message names it."""


class Misshapen(Unsupported):
    """Dimensions that contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """RoPE scaling of Llama 3.1: frequencies with fewer than `low` rotations in `original`
    positions are divided by `factor`, those with more than `high` are unchanged."""

    factor: float
    low: float
    high: float
    original: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """A decoder: grouped-query attention and a gated MLP, or experts, under RMS norms.

    With `experts`, of which a token uses `active`, `ffn` is the width of one expert. All tokens use
    the `shared` experts too. The first `dense_first` layers have an MLP of width `dense_ffn`
    instead of experts.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    ffn: int
    head_dim: int = 128
    experts: int = 0
    active: int = 0
    normalized: bool = False
    """weights of the chosen experts sum to 1"""
    shared: int = 0
    """experts that all tokens use, computed as one MLP of width `shared * ffn`"""
    dense_first: int = 0
    dense_ffn: int = 0
    corrected: bool = False
    """scores of experts are sigmoids, not a softmax, and a bias per expert is added to them where
    experts are chosen (2408.15664). Training does not change the bias"""
    route_scale: float = 1.0
    """factor of the weights of the chosen experts"""
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    eps: float = 1e-6
    rotated: float = 1.0
    """share of each head's dimensions that rotate, from the first one on"""
    rope_theta: float = 1_000_000.0
    rope_scaling: RopeScaling | None = None
    no_rope_interval: int = 0
    """every n-th layer rotates nothing (NoPE, 2501.18795); 0: all layers rotate"""

    def rotates(self, layer: int) -> bool:
        """True if a layer, counted from 0, rotates queries and keys."""
        return _rotates(layer, self.no_rope_interval)

    def has_experts(self, layer: int) -> bool:
        """True if a layer, counted from 0, has experts instead of an MLP."""
        return self.experts > 0 and layer >= self.dense_first

    @property
    def rotated_dim(self) -> int:
        """Number of dimensions of a head that rotate."""
        return int(self.head_dim * self.rotated)


KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
    "head_dim": "head_dim",
    "tied": "tie_word_embeddings",
    "eps": "rms_norm_eps",
}
EXPERT_KEYS = {
    "ffn": "moe_intermediate_size",
    "experts": "num_experts",
    "active": "num_experts_per_tok",
    "normalized": "norm_topk_prob",
}
SHARED_EXPERT_KEYS = {
    **EXPERT_KEYS,
    "experts": "n_routed_experts",
    "shared": "n_shared_experts",
    "dense_first": "first_k_dense_replace",
    "dense_ffn": "intermediate_size",
    "route_scale": "routed_scaling_factor",
}
"""keys of families whose first layers have no experts, and whose others have shared ones"""
NO_ROPE_KEYS = {"no_rope_interval": "no_rope_layer_interval"}
NEEDED = (
    "layers", "hidden", "heads", "vocab", "context", "ffn", "experts", "active", "dense_ffn",
)  # fmt: skip
CONFIG_DEFAULTS = {"eps": 1e-6, "normalized": False}
"""defaults of transformers for keys that a config.json lacks"""
ALIASES = {"num_experts": "num_local_experts", "n_routed_experts": "num_local_experts"}
"""keys that newer versions of transformers write"""
SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "experts", "shared", "dense_first",
    "dense_ffn", "vocab",
)  # fmt: skip
"""dimensions in which two descriptions of a model must agree"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family. `like` names the family whose runtime module it shares; "": it has its own."""

    name: str
    doc: str
    model_type: str
    """of config.json"""
    architecture: str
    """name of its class in transformers"""
    sizes: Mapping[str, Dims]
    hub: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """pairs of a regular expression for names on the hub and the dimensions to change; the group of
    the expression is the size, or `size` is one of the changes"""
    ends: tuple[str, ...] = ()
    """end tokens of its chat models"""
    tools: str = ""
    """form in which its chat models call tools (`tool_calls.FORMS`); "": they do not, or in a form
    that is not known"""
    tokenizer: str = ""
    """families with the same value share their vocabulary"""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """dimensions common to the whole family"""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """required values of further keys of config.json; other values are unsupported"""
    written: Mapping[str, Any] = field(default_factory=dict)
    """further keys of config.json, and their values in an export; a model that is read may have
    others"""
    remark: str = ""
    """what its page of the reference says besides"""
    absent: Mapping[str, Any] = field(default_factory=lambda: CONFIG_DEFAULTS)
    """dimensions that transformers assumes where a config.json lacks the key"""
    further_keys: Mapping[str, str] = field(default_factory=dict)
    """keys of config.json by dimension, where the dimension is fixed in other families"""
    with_shared: bool = False
    """True if its experts have shared ones beside them, and its first layers have none"""
    with_no_rope: bool = False
    """True if its config.json says which layers do not rotate"""
    like: str = ""
    joins_layers: bool = False
    """True if its files, and so vLLM's adapters, join linear layers that trainers adapt apart"""

    @property
    def keys(self) -> Mapping[str, str]:
        """Return the keys of config.json by dimension."""
        experts = any(dims.experts for dims in self.sizes.values())
        mlp = SHARED_EXPERT_KEYS if self.with_shared else EXPERT_KEYS
        keys = KEYS | (mlp if experts else {"ffn": "intermediate_size"})
        return {**keys, **(NO_ROPE_KEYS if self.with_no_rope else {}), **self.further_keys}

    def dims(self, size: str | None, given: Mapping[str, Any], context: int | None = None) -> Dims:
        """Return a published size with changes, or explicit dimensions.

        Raises:
            Unsupported: there is no size, and the dimensions are not enough.
            Misshapen: the dimensions contradict each other.
        """
        if size is not None:
            return self._validated(replace(self.sizes[size], **given))
        missing = [name for name in ("layers", "hidden", "heads", "vocab") if name not in given]
        if missing:
            raise Unsupported(f"{self.name}(...) needs a size or {', '.join(missing)}")
        filled = {
            "kv_heads": given["heads"],
            "ffn": 4 * given["hidden"],
            **({"dense_ffn": 4 * given["hidden"]} if self.with_shared else {}),
            "head_dim": given["hidden"] // given["heads"],
            "context": context or 4096,
            "tied": True,
            **self.defaults,
            **given,
        }
        return self._validated(Dims(**filled))

    def _validated(self, dims: Dims) -> Dims:
        if dims.kv_heads < 1 or dims.heads % dims.kv_heads:
            raise Misshapen(f"heads = {dims.heads} is not a multiple of kv_heads = {dims.kv_heads}")
        if dims.head_dim < 2 or dims.head_dim % 2:
            raise Misshapen(
                f"head_dim = {dims.head_dim} is odd, but rotary embeddings need an even number"
            )
        if dims.rotated_dim < 2 or dims.rotated_dim % 2:
            raise Misshapen(
                f"{dims.rotated:g} of head_dim = {dims.head_dim} rotates, but rotary embeddings "
                "need an even number"
            )
        if self.with_shared and dims.dense_first >= dims.layers:
            raise Misshapen(
                f"dense_first = {dims.dense_first} leaves none of {dims.layers} layers with experts"
            )
        if dims.experts and not 0 < dims.active <= dims.experts:
            raise Misshapen(f"active = {dims.active} is not within experts = {dims.experts}")
        return dims

    def read(self, config: Mapping[str, Any]) -> Dims:
        """Read the dimensions from a config.json of this family.

        Raises:
            Unsupported: it needs an unsupported feature.
        """
        for key, value in self.fixed.items():
            if config.get(key, value) != value:
                raise Unsupported(
                    f"{key} = {config[key]!r} in its config.json is not supported, only {value!r}"
                )
        kinds = set(config.get("layer_types") or ()) - {"full_attention"}
        if kinds:
            raise Unsupported(f"layers of type {', '.join(sorted(kinds))} are not supported")
        values = {
            name: config.get(key, config.get(ALIASES.get(key, "")))
            for name, key in self.keys.items()
        }
        found = {name: value for name, value in values.items() if value is not None}
        missing = [self.keys[n] for n in NEEDED if n in self.keys and n not in found]
        if missing:
            raise Unsupported(f"its config.json has no {', '.join(missing)}")
        if self.with_no_rope:
            found["no_rope_interval"] = _no_rope_interval(config, found)
        found.setdefault("kv_heads", found["heads"])
        found.setdefault("head_dim", found["hidden"] // found["heads"])
        theta, scaling, rotated = _rope(config)
        assumed = {**self.defaults, **self.absent}
        rotated = assumed.get("rotated", 1.0) if rotated is None else rotated
        if "rotated" not in assumed and rotated != 1.0:
            raise Unsupported(
                f"partial_rotary_factor = {rotated} in its config.json is not supported, only 1.0"
            )
        found |= {"rope_theta": theta, "rope_scaling": scaling, "rotated": rotated}
        return Dims(**{**assumed, **found})

    def write(self, dims: Dims) -> dict[str, Any]:
        """Return the keys of a config.json that describe `dims`."""
        scaling = dims.rope_scaling
        rope: dict[str, Any] = {"rope_theta": float(dims.rope_theta), "rope_type": "default"}
        if dims.rotated != 1.0:
            rope["partial_rotary_factor"] = dims.rotated
        if scaling is not None:
            rope |= {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low,
                "high_freq_factor": scaling.high,
                "original_max_position_embeddings": scaling.original,
            }
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": True,
            "pad_token_id": None,  # the default of some families is beyond a small vocabulary
            **self.fixed,
            **self.written,
            **{key: getattr(dims, name) for name, key in self.keys.items()},
            **(_no_rope_keys(dims) if self.with_no_rope else {}),
            "rope_parameters": rope,
        }


def _rotates(layer: int, no_rope_interval: int) -> bool:
    return not no_rope_interval or (layer + 1) % no_rope_interval != 0


def _no_rope_keys(dims: Dims) -> dict[str, Any]:
    rotating = [int(dims.rotates(layer)) for layer in range(dims.layers)]
    return {
        "no_rope_layers": rotating,
        NO_ROPE_KEYS["no_rope_interval"]: dims.no_rope_interval or dims.layers + 1,
    }


def _no_rope_interval(config: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    """Read which layers do not rotate. In `no_rope_layers`, 1 stands for a layer that rotates."""
    layers = int(found["layers"])
    interval = int(found.get("no_rope_interval", 0))
    rotating = config.get("no_rope_layers")
    if rotating is not None:
        interval = [*rotating, 0].index(0) + 1
    interval = interval if interval <= layers else 0
    expected = [int(_rotates(layer, interval)) for layer in range(layers)]
    if rotating is not None and [int(each) for each in rotating] != expected:
        raise Unsupported("no_rope_layers in its config.json are not every n-th layer")
    return interval


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None, float | None]:
    """Read base and scaling of RoPE, and the share of a head that rotates (None: it is not there),
    from the old or the new keys."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    rotated = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if kind == "default":
        return theta, None, rotated
    if kind != "llama3":
        raise Unsupported(
            f'rotary embeddings of type "{kind}" are not supported, only "default" and "llama3"'
        )
    scaling = RopeScaling(
        factor=float(rope["factor"]),
        low=float(rope["low_freq_factor"]),
        high=float(rope["high_freq_factor"]),
        original=int(rope["original_max_position_embeddings"]),
    )
    return theta, scaling, rotated


def difference(ours: Dims, theirs: Dims) -> str:
    """Describe where two models differ, "hidden 128, not 64"; "" if nowhere."""
    names: Sequence[str] = [n for n in SHAPE if getattr(ours, n) != getattr(theirs, n)]
    return ", ".join(f"{n} {getattr(theirs, n)}, not {getattr(ours, n)}" for n in names)
