"""Setting names of TRL, torchforge and verl -> where the same thing is said here.

Looked up when a name is unknown and nothing here is spelt nearly like it, so that
`--set learning_rate=1e-5` gets an answer instead of a list.
"""

from __future__ import annotations

HABITS = {
    "adam_beta1": "`optimizer.betas` of the trainer, `[0.9, 0.95]`",
    "bf16": "`dtype` of the model, `dtype = bf16`",
    "entropy_coeff": "`entropy_coef` of the loss",
    "epsilon": "`clip_low` and `clip_high` of the loss",
    "epsilon_high": "`clip_high` of the loss",
    "eval_steps": "`every` of an `eval`",
    "gpu_memory_utilization": "`engine.gpu_memory` of the generator",
    "gradient_accumulation_steps": "`batch.accumulate` of the trainer",
    "gradient_checkpointing": "`memory.activation_checkpoint` of the trainer",
    "learning_rate": "`optimizer.lr` of the trainer",
    "lr_scheduler_type": "`optimizer.decay` of the trainer",
    "max_completion_length": "`sampling.max_tokens` of the generator",
    "max_grad_norm": "`optimizer.max_norm` of the trainer",
    "max_length": "`batch.seq_len` of the trainer",
    "max_new_tokens": "`sampling.max_tokens` of the generator",
    "max_prompt_length": "`max_prompt_tokens` of the dataset",
    "max_req_tokens": "`max_prompt_tokens` of the dataset",
    "max_res_tokens": "`sampling.max_tokens` of the generator",
    "max_seq_length": "`batch.seq_len` of the trainer",
    "max_steps": "`schedule.steps`",
    "model_name_or_path": "`source = hf(...)` of the model",
    "num_generations": "`n` of `generator.sample(prompt, n = 8)`",
    "num_replicas": "`replicas` of the generator",
    "num_train_epochs": "`schedule.epochs`",
    "off_by_n": "`schedule.max_policy_age`",
    "output_dir": "`forgec run --run-dir DIR`",
    "per_device_train_batch_size": "`batch.rows` of the trainer",
    "report_to": "`logging { wandb { project = ... } }`",
    "reward_weights": "`score` of a `rubric`",
    "save_steps": "`checkpoint.every`",
    "save_total_limit": "`checkpoint.keep`",
    "tensor_parallel_degree": "`parallel.tp`",
    "tensor_parallel_size": "`parallel.tp`",
    "vllm_tensor_parallel_size": "`parallel.tp` of the generator",
    "warmup_ratio": "`optimizer.warmup` of the trainer, a number of steps",
    "warmup_steps": "`optimizer.warmup` of the trainer",
    "with_gpus": "`device` and `gpus` of a service",
}


def habit(name: str) -> str:
    """`here that is ...`, or nothing."""
    ours = HABITS.get(name.lower())
    return "" if ours is None else f"here that is {ours}"
