"""P222 engine-changes-measure: an argument of the engine changes the sampled distribution.

`engine.extra` passes arguments to vLLM unchanged. Some change the sampled distribution, so that
sampler and trainer are different policies: quantized weights or keys, other positions, sampling
parameters from the model's generation_config.json, logits processors (ms-swift #4328, SkyRL #145,
Megatron-LM #5983). Speculative decoding keeps the distribution, but not always the log-probs that
vLLM returns: with its older model runner, which all CPUs and some methods use, they are NaN or
wrong by nats. `synthetic` acceptance accepts drafts that it should reject.

    engine.extra.quantization = "fp8"                    # fires
    engine.extra.speculative_config.method = "suffix"    # fires
    engine.extra.max_num_batched_tokens = 8192           # silent: speed alone

Remove the argument. If the loss corrects the mismatch, write
`# forge: allow[P222] weighed by rl.tis_ppo`.
"""

from forgedsl.ir.program import Decl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "D")
QUANTIZED_KV, SETS_SAMPLING = "it sets parameters of sampling", "it sets temperature and top_p"
OTHER_POSITIONS = "positions differ from those in training"
OTHER_TOKENIZER = "it may load another tokenizer than the trainer's"
CHANGES = {
    "quantization": "the weights are quantized", "calculate_kv_scales": QUANTIZED_KV,
    "generation_config": SETS_SAMPLING, "override_generation_config": SETS_SAMPLING,
    "logits_processors": "they change the logits", "rope_scaling": OTHER_POSITIONS,
    "hf_overrides": "it changes the configuration", "rope_theta": OTHER_POSITIONS,
    "revision": "it may load other weights than the trainer's",
    "tokenizer_revision": OTHER_TOKENIZER, "tokenizer_mode": OTHER_TOKENIZER,
    "enable_lora": "adapters come from the trainer's `lora`",
}  # fmt: skip
INSTEAD = {
    "quantization": "use `engine.weight_dtype = fp8`; lint then checks that the loss corrects it"
}
SPECULATES = "engine.extra.speculative_config."
OLD_RUNNER = ("suffix", "medusa", "mlp_speculator", "custom_class")
"""methods of speculative decoding that vLLM's newer model runner does not support"""


def check(view: View) -> Findings:
    for service in view.samplers():
        yield from _speculates(view, service)
        for key, why in CHANGES.items():
            name = f"engine.extra.{key}"
            within = (v for k, v in service.settings.items() if k.startswith(f"{name}."))
            value = service.settings.get(name) or next(within, None)
            if value is not None:
                yield finding(
                    f"`{key}` lets `{service.name}` differ from the trainer's model: {why}",
                    value.place or place(value, service),
                    help=INSTEAD.get(key, "leave it out of `engine.extra`"),
                )


def _speculates(view: View, service: Decl) -> Findings:
    """Yield a finding if speculative decoding makes sampled tokens or their log-probs wrong."""
    given = {k.removeprefix(SPECULATES): v for k, v in service.settings.items()
             if k.startswith(SPECULATES)}  # fmt: skip
    if not given:
        return
    sampling, first = given.get("rejection_sample_method"), next(iter(given.values()))
    method = given.get("method", first)
    what, why, at = "", "", first
    if sampling is not None and sampling.value == "synthetic":
        what, why = "`synthetic` acceptance", "accepts draft tokens without rejection sampling"
        at = sampling
    elif method.value in OLD_RUNNER:
        what, why, at = f"`{method.value}`", "returns wrong log-probs of accepted tokens", method
    elif _on_cpu(view, service):
        what, why = "speculative decoding on a CPU", "returns wrong log-probs of accepted tokens"
    if what:
        yield finding(
            f"with {what}, `{service.name}` {why}",
            at.place or place(at, service),
            help="leave it out of `engine.extra`",
        )


def _on_cpu(view: View, service: Decl) -> bool:
    if view.planned is None:
        return bool(service.settings["device"].value == "cpu")
    meshes = view.planned[1].meshes
    return any(mesh.service == service.name and mesh.device == "cpu" for mesh in meshes)
