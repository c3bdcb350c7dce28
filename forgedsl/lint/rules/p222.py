"""P222 engine-changes-measure: an argument of the engine that makes it another model.

`engine.extra` passes arguments on as they are. Some change what is sampled, so that log-probs of
the sampler and of the trainer are no longer those of one model: quantized weights or keys, other
positions, sampling parameters from the model's own file, processors of logits (ms-swift #4328,
SkyRL #145, Megatron-LM #5983).

    engine.extra.quantization = "fp8"                    # fires
    engine.extra.max_num_batched_tokens = 8192           # silent: speed alone

Where the mismatch is corrected for: `# forge: allow[P222] weighed by rl.tis_ppo`.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "D")
ROUNDS, SETS = "keys and values are rounded", "it sets temperature and top_p"
PLACES, OTHER = "positions are other than in training", "it may be another than the trainer's"
CHANGES = {
    "quantization": "the weights are rounded", "calculate_kv_scales": ROUNDS,
    "generation_config": SETS, "override_generation_config": SETS,
    "logits_processors": "it changes the distribution", "rope_scaling": PLACES,
    "hf_overrides": "it changes the configuration", "rope_theta": PLACES, "revision": OTHER,
    "tokenizer_revision": OTHER, "tokenizer_mode": OTHER,
    "enable_lora": "adapters come from the trainer's `lora`",
}  # fmt: skip


def check(view: View) -> Findings:
    for service in view.samplers():
        for key, why in CHANGES.items():
            value = service.settings.get(f"engine.extra.{key}")
            if value is not None:
                yield finding(
                    f"`{key}` makes `{service.name}` another model than the trainer's: {why}",
                    value.place or place(value, service),
                    help="leave it out of `engine.extra`",
                )
