"""The registry of kinds: every declaration with settings, and each of its settings.

`KINDS` maps a kind to its schema; services have one schema per constructor (`titan`, `vllm`),
found in `SERVICES`. Rows are (name, type, default, impact, doc).
"""

from __future__ import annotations

from typing import Any

from forgedsl import transports
from forgedsl.launchers.registry import SIGNATURES
from forgedsl.operations.registry import declarations
from forgedsl.records import replace
from forgedsl.schema import constructors as c
from forgedsl.services.registry import SCHEMAS
from forgedsl.settings import (
    AUTO,
    BOOL,
    BYTES,
    COUNT,
    DURATION,
    EXPRESSION,
    FRACTION,
    INTERVAL,
    NATURAL,
    NON_NEGATIVE,
    POSITIVE,
    POSITIVE_FRACTION,
    REQUIRED,
    STR,
    Derived,
    Kind,
    Setting,
    Type,
    word,
)

FORMS = ("hermes", "qwen3_coder", "llama3_json", "mistral", "deepseek_v3")
"""forms of tool calls; see `tool_calls.FORMS`"""
NUM, PLACE, OBS = "numerics", "placement", "observability"


def rows(*table: tuple[str, Type, Any, Any, str]) -> tuple[Setting, ...]:
    """Settings from rows (name, type, default, impact, doc)."""
    return tuple(
        Setting(name=name, type=type_, default=default, impact=impact, doc=doc)
        for name, type_, default, impact, doc in table
    )


_STR = replace(STR, optional=True)
_COUNT = replace(COUNT, optional=True)
_CONTEXT = replace(COUNT, auto=True)
_SOURCE = Type(base="ctor", ctors=c.MODEL_SOURCES)
_DATA = Type(base="ctor", ctors=c.DATA_SOURCES)
_COLUMN = replace(EXPRESSION, optional=True)
_ON_ERROR = Type(base="float", words=("drop",))

RUN = Kind(
    name="run",
    singleton=True,
    doc="seed and name of a run",
    settings=rows(
        ("seed", NATURAL, 17, NUM, "random seed of data order, sampling and initial weights"),
        ("name", STR, Derived("the file's name"), OBS, "name of the run, used for the run folder"),
    ),
)
CLUSTER = Kind(
    name="cluster",
    singleton=True,
    doc="the hosts that the plan may use",
    settings=rows(
        ("hosts", COUNT, Derived("the host"), PLACE, "number of hosts"),
        ("gpus", NATURAL, Derived("the host"), PLACE, "GPUs per host"),
        ("gpu", _STR, Derived("the host"), PLACE, "GPU model"),
        ("gpu_memory", BYTES, Derived("the host"), PLACE, "memory of one GPU"),
        ("cpus", COUNT, Derived("the host"), PLACE, "CPU cores per host"),
        ("memory", BYTES, Derived("the host"), PLACE, "main memory per host"),
    ),
)
LAUNCHER = Kind(
    name="launcher",
    singleton=True,
    single=True,
    doc="how processes start",
    settings=rows(
        (
            "value",
            Type(base="ctor", ctors=SIGNATURES),
            Derived("local"),
            PLACE,
            "what starts the processes",
        )
    ),
)
COLOCATE = Kind(
    name="colocate",
    singleton=True,
    single=True,
    doc="services that share GPUs",
    settings=rows(
        ("value", Type(base="list", item=Type(base="ref", kinds=("service",)), auto=True), [],
         PLACE, "services that take turns on the same GPUs; auto: those that the plan chooses")
    ),
)  # fmt: skip
MODEL = Kind(
    name="model",
    doc="weights, architecture and tokenizer",
    settings=rows(
        ("source", _SOURCE, REQUIRED, NUM, "where the weights come from"),
        ("adapter", Type(base="ctor", ctors=c.ADAPTERS, optional=True), None, NUM,
         "LoRA adapter in the layout of PEFT, which is merged into the weights; an engine adds it "
         "to its base for a vllm service with `served_by`"),
        ("arch", Type(base="ctor", ctors=c.ARCHITECTURES, auto=True), AUTO, NUM,
         "architecture; auto reads the source's config.json"),
        ("dtype", word("f32", "bf16", "f16"), "bf16", NUM, "dtype of the weights"),
        ("context", _CONTEXT, AUTO, NUM, "maximum number of tokens of a sequence; auto: that of "
            "the source"),
        ("tokenizer", Type(base="ctor", ctors=c.TOKENIZERS, auto=True), AUTO, NUM,
         "tokenizer; auto: that of the source"),
        ("chat_template", replace(STR, auto=True), AUTO, NUM,
         "chat template (Jinja); auto: that of the tokenizer"),
        ("tool_calls", Type(base="ctor", ctors=c.TOOL_CALLS, words=FORMS, auto=True), AUTO, NUM,
         "form in which the model writes tool calls; auto: that of the chat template"),
    ),
)  # fmt: skip
DATASET = Kind(
    name="dataset",
    doc="rows of data, and the prompt and target made from each row",
    settings=rows(
        ("source", _DATA, REQUIRED, NUM, "where the rows come from"),
        ("system", _STR, None, NUM, "system message, usable in `prompt`"),
        ("prompt", _COLUMN, None, NUM, "prompt text or chat messages"),
        ("target", _COLUMN, None, NUM, "reference answer for rewards"),
        ("chat", _COLUMN, None, NUM, "conversation for supervised training"),
        ("learn", word("assistant_turns", "last_turn", "all"), "assistant_turns", NUM,
         "tokens of `chat` on which the loss is computed"),
        ("chosen", _COLUMN, None, NUM, "preferred answer of a pair"),
        ("rejected", _COLUMN, None, NUM, "other answer of a pair"),
        ("shuffle", Type(base="ctor", ctors=c.SEED, optional=True), Derived("seed(run.seed)"), NUM,
         "order of the rows"),
        ("streaming", replace(BOOL, auto=True), AUTO, NUM, "read rows while they are needed "
            "instead of downloading all"),
        ("level", _COLUMN, None, NUM,
         "key by which a weighted draw averages scores; none: each row separately"),
        ("max_prompt_tokens", _COUNT, None, NUM,
         "maximum number of tokens of a prompt; none: what `max_tokens` leaves of the model's "
         "context and of the trainer's `batch.seq_len`"),
        ("on_long", word("drop", "truncate", "error"), "drop", NUM, "what to do with rows that are "
            "too long"),
        ("max_bad_rows", FRACTION, 0.05, NUM,
         "maximum fraction of unusable rows, which are skipped; above it the run ends"),
    ),
)  # fmt: skip
REWARD = Kind(
    name="reward",
    doc="scores one rollout",
    settings=rows(
        ("procs", COUNT, 1, PLACE, "number of processes that evaluate it"),
        ("concurrency", COUNT, 16, PLACE, "concurrent calls per process, for `async def` "
            "functions"),
        ("timeout", DURATION, 30.0, NUM, "time limit of a call"),
        ("retries", NATURAL, 1, NUM, "number of retries after a failed call"),
        ("on_error", replace(_ON_ERROR, auto=True), AUTO, NUM, "score if the reward fails, or drop "
            "the rollout; auto: as in the rubric"),
        ("max_failed", FRACTION, 0.25, OBS, "maximum fraction of failed scores among the last 256; "
            "above it the run stops"),
        ("monitor", BOOL, False, OBS, "only report this reward; do not use it in the score"),
        ("effects", Type(base="list", item=word("io", "net", "exec", "random", "gpu")), [], NUM,
         "side effects of the Python function"),
        ("files", Type(base="list", item=STR), [], NUM,
         "files and folders that a Python reward reads; they are copied into the run"),
        ("memory", replace(BYTES, optional=True), None, NUM,
         "memory limit of a process; a call that exceeds it fails"),
        ("cache", BOOL, False, NUM, "reuse the value of an earlier call with the same arguments"),
    ),
)  # fmt: skip
RUBRIC = Kind(
    name="rubric",
    doc="combines rewards into the score of a rollout",
    settings=rows(
        ("score", EXPRESSION, REQUIRED, NUM, "expression over rewards"),
        ("on_truncated", Type(base="float", optional=True), None, NUM,
         "score of a completion cut at its length limit"),
        ("on_error", _ON_ERROR, "drop", NUM, "score of a rollout whose reward failed"),
    ),
)  # fmt: skip
ENVIRONMENT = Kind(
    name="environment",
    doc="an environment for multi-turn trajectories: a Python class that runs in separate "
        "processes",
    settings=rows(
        ("procs", COUNT, 1, PLACE, "number of processes; each holds many trajectories"),
        ("tool_timeout", DURATION, 10.0, NUM,
         "time limit of a tool call or of `step`; if it passes, the policy gets an error as "
         "observation"),
        ("deadline", replace(DURATION, optional=True), None, NUM,
         "time limit of a trajectory; it then ends with the turns played so far"),
        ("max_observation", COUNT, 256, NUM,
         "maximum number of tokens of an observation; the rest is cut"),
        ("history", word("append", "template"), "append", NUM,
         "earlier turns in later prompts. append: as they were sampled; template: as the chat "
         "template writes them; where it changes earlier turns, a new training row begins"),
        ("on_error", _ON_ERROR, "drop", NUM,
         "score of a trajectory whose environment failed twice"),
    ),
)  # fmt: skip
SCHEDULE = Kind(
    name="schedule",
    singleton=True,
    labels=("sync", "async"),
    doc="length of training, and how far sampling may run ahead of it",
    settings=rows(
        ("steps", replace(_COUNT, maximum=1e9, usual=(1, 1e7)), None, NUM, "number of steps"),
        ("epochs", replace(POSITIVE, optional=True, usual=(1e-6, 1e4)), None, NUM,
         "passes over the dataset"),
        ("max_policy_age", replace(NATURAL, optional=True, usual=(0, 1000)), None, NUM,
         "maximum policy age of a sample in a batch, in versions"),
        ("window", Type(base="float", minimum=0.0, maximum=1.0), 0.0, NUM,
         "how far groups may be trained out of order, as a fraction of the groups in flight; 0: in "
         "order"),
        ("on_stale", word("drop", "error"), "drop", NUM, "what to do with a group older than "
            "`max_policy_age`"),
        ("starve_timeout", replace(DURATION, optional=True), None, OBS,
         "stop the run if no group arrives within this time"),
        ("restarts", replace(NATURAL, maximum=1000), 0, OBS,
         "how often a run may restart from its last checkpoint after a service failed"),
    ),
)  # fmt: skip
_SAMPLE = rows(
    ("sample.temperature", replace(NON_NEGATIVE, auto=True, usual=(0.0, 5.0)), AUTO, OBS,
     "temperature of the eval's completions; auto: that of the generator"),
    ("sample.top_p", replace(POSITIVE_FRACTION, auto=True), AUTO, OBS,
     "probability mass of the tokens to sample from; auto: that of the generator"),
    ("sample.top_k", replace(COUNT, optional=True, auto=True), AUTO, OBS,
     "number of the likeliest tokens to sample from; auto: that of the generator"),
    ("sample.min_p", Type(base="float", minimum=0, maximum=1, auto=True), AUTO, OBS,
     "least probability of a token, relative to the likeliest; auto: that of the generator"),
    ("sample.max_tokens", replace(COUNT, auto=True), AUTO, OBS,
     "maximum tokens of a completion; auto: that of the generator"),
    ("sample.n", COUNT, 1, OBS, "completions per prompt"),
)  # fmt: skip
EVAL = Kind(
    name="eval",
    doc="evaluates the policy during training: the score of sampled answers, or a loss on held-out "
        "data",
    settings=(
        *rows(
            ("dataset", Type(base="ref", kinds=("dataset",)), REQUIRED, OBS, "prompts and targets"),
            ("split", _STR, None, OBS, "use another split of the dataset's source"),
            ("source", replace(_DATA, optional=True), None, OBS, "use another source of rows with "
                "the same columns"),
            ("score", Type(base="ref", kinds=("reward", "rubric"), optional=True), None, OBS,
             "reward or rubric to report for sampled answers"),
            ("loss", Type(base="loss", optional=True), None, OBS,
             "loss to report on the dataset's conversations or pairs, computed by the trainer "
             "without an update; an alternative to `score`"),
            ("every", COUNT, REQUIRED, OBS, "steps between evaluations"),
            ("limit", _COUNT, None, OBS, "maximum number of rows to use"),
            ("env", Type(base="ref", kinds=("environment",), optional=True), None, OBS,
             "play in an environment, as the flow does"),
            ("max_turns", _COUNT, None, OBS, "maximum number of turns of a trajectory, with `env`"),
        ),
        *_SAMPLE,
    ),
)  # fmt: skip
CHECKPOINT = Kind(
    name="checkpoint",
    singleton=True,
    doc="saved state, in the run folder",
    settings=rows(
        ("every", replace(INTERVAL, optional=True), 600.0, OBS,
         "interval between checkpoints; one is always written at the end"),
        ("keep", COUNT, 2, OBS, "number of checkpoints to keep"),
        ("grace", replace(DURATION, auto=True, usual=(10.0, 7200.0)), AUTO, OBS,
         "time from SIGTERM to the end of the run, for finishing the step and writing a "
         "checkpoint; set it to the notice that your scheduler gives. auto: 1.5 steps and a "
         "checkpoint, by the plan's estimate; at least 2min"),
        ("export", Type(base="ctor", ctors=c.EXPORTS, optional=True), None, OBS,
         "write the weights in Hugging Face format at the end"),
    ),
)  # fmt: skip
LOGGING = Kind(
    name="logging",
    singleton=True,
    doc="where metrics go",
    settings=rows(
        ("console", BOOL, True, OBS, "progress on the terminal"),
        ("jsonl", BOOL, True, OBS, "metrics.jsonl"),
        ("tensorboard", BOOL, True, OBS, "TensorBoard events"),
        ("prometheus", replace(_COUNT, maximum=65535), None, OBS,
         "port on which Prometheus can read the latest metrics; none: off"),
        ("wandb.project", _STR, None, OBS, "Weights & Biases project; none: off"),
        ("wandb.entity", _STR, None, OBS, "Weights & Biases entity"),
        ("wandb.mode", replace(word("online", "offline", "disabled"), optional=True), None, OBS,
         "Weights & Biases mode"),
        ("mlflow.experiment", _STR, None, OBS, "MLflow experiment; none: off"),
        ("mlflow.uri", _STR, None, OBS,
         "address of an MLflow server; none: what MLFLOW_TRACKING_URI says"),
        ("trackio.project", _STR, None, OBS, "Trackio project; none: off"),
        ("trackio.space", _STR, None, OBS,
         "Space of the Hugging Face hub that Trackio writes to; none: this machine"),
        ("samples", NATURAL, 8, OBS, "number of sample completions logged per step"),
        ("record.steps", Type(base="int", minimum=1, words=("all",), optional=True), 20, OBS,
         "number of last steps whose completions are recorded for `forgec whatif` and `forgec "
         "bisect`; none: off"),
        ("record.disk", replace(BYTES, optional=True), 2**30, OBS,
         "maximum bytes of recorded steps; the oldest are removed first. none: no limit"),
    ),
)  # fmt: skip
_REASON = Type(base="str", optional=True, minimum=4)
PROOFS = Kind(
    name="proofs",
    singleton=True,
    doc="checks that a run makes of itself; all are on, and each can be turned off with a reason",
    settings=rows(
        ("off.publications", _REASON, None, OBS,
         "reason to turn off the comparison of the engine's weights with the published ones"),
        ("off.start", _REASON, None, OBS,
         "reason to load an engine's weights from its model's folder at the start. By default it "
         "starts from random weights, which the first publication must replace"),
        ("off.gap", _REASON, None, OBS,
         "reason to turn off the comparison of log-probs of trainer and sampler in each step"),
        ("off.frozen", _REASON, None, OBS,
         "reason to turn off the comparison of a frozen model with the files of its folder"),
        ("off.masks", _REASON, None, OBS,
         "reason to turn off the check, on the first batch, that masked tokens have no influence"),
        ("off.loss", _REASON, None, OBS,
         "reason to turn off the comparison of losses with float64, on the first batch"),
    ),
)  # fmt: skip

SYNC = Kind(
    name="sync",
    doc="sends weights from a trainer to a generator",
    settings=rows(
        ("every", COUNT, 1, NUM, "steps between two syncs"),
        ("overlap", BOOL, True, NUM, "continue sampling during the transfer"),
        (
            "on_swap",
            word("recompute", "keep"),
            "recompute",
            NUM,
            "what to do with the KV caches of running completions: recompute them under the new "
            "weights, or keep them",
        ),
        (
            "weights",
            word("merged", "adapter"),
            "merged",
            NUM,
            "what is sent if the trainer has `lora`. merged: all weights, with the adapter merged "
            "into them; adapter: the adapter alone, which the engine adds to its base weights",
        ),
        (
            "transport",
            word("auto", *transports.NAMES),
            "auto",
            PLACE,
            "how weights are transferred",
        ),
        ("timeout", DURATION, 300.0, OBS, "time limit of a sync"),
    ),
)

SERVICES = SCHEMAS
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        RUN, CLUSTER, LAUNCHER, COLOCATE, MODEL, DATASET, REWARD, RUBRIC, ENVIRONMENT,
        *(each.kind for each in declarations().values()), SCHEDULE, EVAL, CHECKPOINT, LOGGING,
        PROOFS,
    )
}  # fmt: skip
SINGLETONS = tuple(kind.name for kind in KINDS.values() if kind.singleton)
FUNCTION_KINDS = ("loss", "reward", "advantage", "filter", "fn")
ALL_KINDS = (*KINDS, "service", "flow", "profile", "loss", "advantage", "filter", "fn")
