"""Maps names of other tools to their equivalents here.

EQUIVALENTS, FUNCTION_EQUIVALENTS: names of TRL, torchforge, verl and torch, looked up when a name
is unknown.
`whole_addresses`: `--set lr=1e-5` for `trainer.optimizer.lr`. `as_override`: `trainer.procs:4` for
`trainer.procs=4`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from forgedsl import surface
from forgedsl.mistakes.suggest import did_you_mean, nearest

MIXED = (
    "`trainer.step(merge(a, b), loss = ...)` for batches, and `source = mixture([...], weights = "
    "[...])` of the dataset for rows"
)
FUNCTION_EQUIVALENTS = {
    "cat": MIXED,
    "coalesce": "`first(row.a, row.b)`",
    "collate": "`replay(rollout, ...)`",
    "concat": MIXED,
    "concatenate": MIXED,
    "format": '`"..." + text(x)`',
    "detach": "`stop(x)`",
    "endswith": '`matches(s, "x$")`',
    "findall": "`matches(s, pattern)`, or a Python reward",
    "float": "no function: keep the text, and let a reward parse the number in it",
    "fullmatch": '`matches(s, "^x$")`',
    "int": "no function: keep the text, and let a reward parse the number in it",
    "join": "`a + b`, `paragraphs(a, b)`",
    "log_softmax": "`logprob`, a field of the loss",
    "logsigmoid": "`log_sigmoid(x)`",
    "masked_mean": "`token_mean(x, mask)`",
    "maximum": "`max(a, b)`",
    "merge": MIXED,
    "minimum": "`min(a, b)`",
    "match": "`matches(s, pattern)`",
    "prod": "`a * b`",
    "relu": "`max(x, 0.0)`",
    "split": "`after(s, sep)` or `before(s, sep)`",
    "search": "`matches(s, pattern)`",
    "softmax": "`exp(logprob)`, of the field `logprob`",
    "square": "`x ** 2`",
    "startswith": '`matches(s, "^x")`',
    "str": "`text(x)`",
    "string": "`text(x)`",
    "stop_gradient": "`stop(x)`",
    "trim": "`strip(s)`",
    "where": "`a if condition else b`",
}
"""Functions of torch, numpy and Python."""

OPTIONS = ("--profile", "--set", "--set-file", "--seed", "--run-dir", "--resume", "--quiet")
ARGUMENTS = ("profile", "set", "set_files", "host")
"""of `forgedsl.load`"""

EQUIVALENTS = {
    "adam_beta1": "`optimizer.betas` of the trainer, `[0.9, 0.95]`",
    "bfloat16": "`bf16`",
    "bf16": "`dtype` of the model, `dtype = bf16`",
    "enable_cpu_offload": "`memory.offload` of the trainer",
    "entropy_coeff": "`entropy_coef` of the loss",
    "completion": "the text `response`",
    "completions": "the text `response`",
    "cuda": "`gpu`",
    "float16": "`f16`",
    "float32": "`f32`",
    "beta": "a parameter of the loss: `loss = rl.grpo(beta = 0.1)`",
    "epsilon": "`clip_low` and `clip_high` of the loss",
    "epsilon_high": "`clip_high` of the loss",
    "env": "an override of a parameter: `NAME=VALUE`",
    "eval_steps": "`every` of an `eval`",
    "fused_opt_states_bf16": "`optimizer.precision = bf16_moments` of the trainer",
    "gpu_memory_utilization": "`engine.gpu_memory` of the generator",
    "gradient_accumulation_steps": "`batch.accumulate` of the trainer",
    "gradient_checkpointing": "`memory.activation_checkpoint` of the trainer",
    "gpus": "`gpus` of the cluster",
    "hosts": "`hosts` of the cluster",
    "k8s": "`kubernetes(namespace = ..., image = ...)`",
    "learning_rate": "`optimizer.lr` of the trainer",
    "lr_scheduler_type": "`optimizer.decay` of the trainer",
    "localhost": "`local`",
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
    "n": "`n` of `generator.sample(prompt, n = 8)`",
    "nnodes": "`hosts` of the cluster",
    "nodes": "`hosts` of the cluster",
    "num_generations": "`n` of `generator.sample(prompt, n = 8)`",
    "num_hosts": "`hosts` of the cluster",
    "num_nodes": "`hosts` of the cluster",
    "num_replicas": "`replicas` of the generator",
    "num_samples": "`n` of `generator.sample(prompt, n = 8)`",
    "num_train_epochs": "`schedule.epochs`",
    "num_workers": "`procs`",
    "off_by_n": "`schedule.max_policy_age`",
    "output_dir": "`forgec run --run-dir DIR`",
    "per_device_train_batch_size": "`batch.rows` of the trainer",
    "reference": "a frozen service, `service reference : titan(MODEL) {}`",
    "reward_func": "`score` of a `rubric`, made of rewards",
    "reward_funcs": "`score` of a `rubric`, made of rewards",
    "report_to": "`logging { wandb { project = ... } }`",
    "reward_weights": "`score` of a `rubric`",
    "row": "`target = record(...)` of the dataset, or a parameter of a Python reward",
    "queue": "`partition`",
    "save_steps": "`checkpoint.every`",
    "global_step": "`num_steps: [B] i64`, a field of the loss",
    "seed": "`run.seed`; every completion derives a seed of its own from it",
    "sbatch": "`slurm(partition = ...)`",
    "save_total_limit": "`checkpoint.keep`",
    "split": '`source = hf(id, split = "train")` of the dataset',
    "torch_dtype": "`dtype`, as in `dtype = bf16`",
    "srun": "`slurm(partition = ...)`",
    "temp": "`sampling.temperature` of the generator",
    "tensor_parallel_degree": "`parallel.tp`",
    "tensor_parallel_size": "`parallel.tp`",
    "vllm_tensor_parallel_size": "`parallel.tp` of the generator",
    "walltime": "`time`",
    "warmup_ratio": "`optimizer.warmup` of the trainer, a number of steps",
    "warmup_steps": "`optimizer.warmup` of the trainer",
    "weights": "`score = 0.9 * correct + 0.1 * short` of a rubric",
    "mlflow": "`logging { mlflow { experiment = ... } }`",
    "trackio": "`logging { trackio { project = ... } }`",
    "wandb": "`logging { wandb { project = ... } }`",
    "with_gpus": "`device` and `gpus` of a service",
    "workers": "`procs`",
}


def equivalent(name: str) -> str:
    """Return `here it is ...`, or ""."""
    ours = EQUIVALENTS.get(name.lower())
    return "" if ours is None else f"here it is {ours}"


def function_equivalent(name: str) -> str:
    """Return the equivalent of a function name of another tool."""
    ours = FUNCTION_EQUIVALENTS.get(name)
    return "" if ours is None else f"here it is {ours}"


def whole_addresses(end: str, settings: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the paths that end in the typed words: `optimizer.lr` of the trainer. `settings` are
    pairs (declaration, setting)."""
    found = (f"{name}.{key}" for name, key in settings if f".{key}".endswith(f".{end}"))
    return tuple(found)[:4] if end else ()


def misspelt_option(name: str) -> str:
    """Return the help for a misspelt option, which was read as an override: `--profle cpu`."""
    if surface.in_python():
        return did_you_mean(nearest(name, ARGUMENTS))
    return did_you_mean(nearest(f"--{name.replace('_', '-')}", OPTIONS))


def as_override(text: str) -> str:
    """Return the intended override of an argument without `=`, or the general form."""
    colon = re.fullmatch(r"([\w.]+):\s*(\S+)", text)
    if colon is not None:
        return f"did you mean `{colon[1]}={colon[2]}`?"
    return f"write `{surface.override('NAME.SETTING=VALUE')}`"


def one_by_one(text: str) -> str:
    """Return the help for a value that contains a second override."""
    one = "text" if surface.in_python() else "`--set`"
    return f"give one setting per {one}" if re.search(r",\s*[\w.]+=", text) else ""
