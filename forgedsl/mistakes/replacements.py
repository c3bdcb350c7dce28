"""What replaces a name of another tool in a text, for names whose place is known.

    learning_rate = 1e-5   -->   optimizer.lr = 1e-5 of the trainer      SETTINGS
    adam_beta1 = 0.9       -->   optimizer.betas = [0.9, 0.95]           and FORMS
    rl.dapo(epsilon = 0.2) -->   rl.dapo(clip_low = 0.2, clip_high = 0.2) ARGUMENTS
    torch.minimum(a, b)    -->   min(a, b)                               CALLS

`other_tools` has the sentences of the messages. The names there that are missing here need more
than a replacement: a value in another unit, a declaration, or a decision.
"""

from __future__ import annotations

SETTINGS = {
    "adam_beta1": ("trainer", "optimizer.betas"),
    "bf16": ("model", "dtype"),
    "enable_cpu_offload": ("trainer", "memory.offload"),
    "eval_steps": ("eval", "every"),
    "fused_opt_states_bf16": ("trainer", "optimizer.precision"),
    "gpu_memory_utilization": ("generator", "engine.gpu_memory"),
    "gpus": ("cluster", "gpus"),
    "gradient_accumulation_steps": ("trainer", "batch.accumulate"),
    "gradient_checkpointing": ("trainer", "memory.activation_checkpoint"),
    "hosts": ("cluster", "hosts"),
    "learning_rate": ("trainer", "optimizer.lr"),
    "lr_scheduler_type": ("trainer", "optimizer.decay"),
    "max_completion_length": ("generator", "sampling.max_tokens"),
    "max_grad_norm": ("trainer", "optimizer.max_norm"),
    "max_length": ("trainer", "batch.seq_len"),
    "max_new_tokens": ("generator", "sampling.max_tokens"),
    "max_prompt_length": ("dataset", "max_prompt_tokens"),
    "max_req_tokens": ("dataset", "max_prompt_tokens"),
    "max_res_tokens": ("generator", "sampling.max_tokens"),
    "max_seq_length": ("trainer", "batch.seq_len"),
    "max_steps": ("schedule", "steps"),
    "model_name_or_path": ("model", "source"),
    "nnodes": ("cluster", "hosts"),
    "nodes": ("cluster", "hosts"),
    "num_hosts": ("cluster", "hosts"),
    "num_nodes": ("cluster", "hosts"),
    "num_replicas": ("generator", "replicas"),
    "num_train_epochs": ("schedule", "epochs"),
    "num_workers": ("", "procs"),
    "off_by_n": ("schedule", "max_policy_age"),
    "per_device_train_batch_size": ("trainer", "batch.rows"),
    "save_steps": ("checkpoint", "every"),
    "save_total_limit": ("checkpoint", "keep"),
    "seed": ("run", "seed"),
    "temp": ("generator", "sampling.temperature"),
    "tensor_parallel_degree": ("", "parallel.tp"),
    "tensor_parallel_size": ("", "parallel.tp"),
    "torch_dtype": ("model", "dtype"),
    "vllm_tensor_parallel_size": ("generator", "parallel.tp"),
    "warmup_steps": ("trainer", "optimizer.warmup"),
    "workers": ("", "procs"),
}
"""(kind of the declaration, or what a service is for; path of the setting); "" is the declaration
where the name stands"""

FORMS = {"adam_beta1": "[{value}, 0.95]", "model_name_or_path": "hf({value})"}
"""forms of values that change with the name"""

VALUES = {
    "bf16": {"true": "bf16", "false": "f32"},
    "fused_opt_states_bf16": {"true": "bf16_moments", "false": "f32"},
    "gradient_checkpointing": {"true": "full", "false": "none"},
    "torch_dtype": {"float32": "f32", "bfloat16": "bf16", "float16": "f16"},
}
"""values that change with the name, one by one; others have no equivalent"""

DRAWN = ("n", "num_generations", "num_samples")
"""names for the number of completions, the `n` of `generator.sample`"""

ARGUMENTS = {
    "entropy_coeff": ("entropy_coef",),
    "epsilon": ("clip_low", "clip_high"),
    "epsilon_high": ("clip_high",),
    "queue": ("partition",),
    "walltime": ("time",),
}
"""arguments of calls; each new one takes the value"""

NAMES = {
    "completion": "response",
    "completions": "response",
    "localhost": "local()",
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "cuda": "gpu",
}
"""names of values"""

CALLS = {
    "coalesce": "first({0}, {1})",
    "collate": "replay",
    "detach": "stop",
    "endswith": 'matches({0}, "{1}$")',
    "k8s": "kubernetes",
    "logsigmoid": "log_sigmoid",
    "masked_mean": "token_mean",
    "maximum": "max",
    "minimum": "min",
    "prod": "({0} * {1})",
    "relu": "max({0}, 0.0)",
    "sbatch": "slurm",
    "square": "({0}) ** 2",
    "srun": "slurm",
    "startswith": 'matches({0}, "^{1}")',
    "stop_gradient": "stop",
    "str": "text",
    "string": "text",
    "trim": "strip",
    "where": "({1} if {0} else {2})",
}
"""functions: another name, or a form of the arguments. Before a quote mark or `$`, an argument is
the text of a string."""
