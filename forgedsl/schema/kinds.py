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
    PART,
    POSITIVE,
    REQUIRED,
    SOME,
    STR,
    Derived,
    Kind,
    Setting,
    Type,
    word,
)

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
    doc="identity of a run",
    settings=rows(
        ("seed", NATURAL, 17, NUM, "seeds data order, sampling and initial weights"),
        ("name", STR, Derived("the file's name"), OBS, "names the run folder"),
    ),
)
CLUSTER = Kind(
    name="cluster",
    singleton=True,
    doc="the hosts the plan may use",
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
        ("value", Type(base="ctor", ctors=SIGNATURES), Derived("local"), PLACE, "how to start")
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
        ("arch", Type(base="ctor", ctors=c.ARCHITECTURES, auto=True), AUTO, NUM,
         "architecture; auto reads the source's config.json"),
        ("dtype", word("f32", "bf16", "f16"), "bf16", NUM, "dtype of the weights in use"),
        ("context", _CONTEXT, AUTO, NUM, "longest sequence; auto is the source's"),
        ("tokenizer", Type(base="ctor", ctors=c.TOKENIZERS, auto=True), AUTO, NUM,
         "tokenizer; auto is the source's"),
        ("chat_template", replace(STR, auto=True), AUTO, NUM,
         "Jinja text; auto is the tokenizer's"),
    ),
)  # fmt: skip
DATASET = Kind(
    name="dataset",
    doc="rows, and the prompt and target made of each",
    settings=rows(
        ("source", _DATA, REQUIRED, NUM, "where the rows come from"),
        ("system", _STR, None, NUM, "system message, usable in `prompt`"),
        ("prompt", _COLUMN, None, NUM, "what the policy sees"),
        ("target", _COLUMN, None, NUM, "what rewards compare with"),
        ("chat", _COLUMN, None, NUM, "messages to learn from"),
        ("learn", word("assistant_turns", "last_turn", "all"), "assistant_turns", NUM,
         "which tokens of `chat` carry loss"),
        ("chosen", _COLUMN, None, NUM, "preferred answer of a pair"),
        ("rejected", _COLUMN, None, NUM, "other answer of a pair"),
        ("shuffle", Type(base="ctor", ctors=c.SEED, optional=True), Derived("seed(run.seed)"), NUM,
         "order of the rows"),
        ("streaming", replace(BOOL, auto=True), AUTO, NUM, "read rows as they are needed"),
        ("level", _COLUMN, None, NUM,
         "what a weighted draw counts results by; without it, each row by itself"),
        ("max_prompt_tokens", _COUNT, None, NUM,
         "longest prompt; without it, what the context and a row leave beside `max_tokens`"),
        ("on_long", word("drop", "truncate", "error"), "drop", NUM, "what to do with longer ones"),
        ("max_bad_rows", FRACTION, 0.05, NUM,
         "share of rows that may be left out because they cannot be used; more end the run"),
    ),
)  # fmt: skip
REWARD = Kind(
    name="reward",
    doc="scores one rollout",
    settings=rows(
        ("procs", COUNT, 1, PLACE, "processes of its pool"),
        ("concurrency", COUNT, 16, PLACE, "calls at a time in a process, if it is `async def`"),
        ("timeout", DURATION, 30.0, NUM, "longest call"),
        ("retries", NATURAL, 1, NUM, "tries after a failed call"),
        ("on_error", replace(_ON_ERROR, auto=True), AUTO, NUM, "auto is the rubric's"),
        ("max_failed", FRACTION, 0.25, OBS, "part of the last 256 scores that may fail"),
        ("monitor", BOOL, False, OBS, "reported beside every score, and no part of it"),
        ("effects", Type(base="list", item=word("io", "net", "exec", "random", "gpu")), [], NUM,
         "what the Python function does besides computing"),
        ("memory", replace(BYTES, optional=True), None, NUM,
         "data a process may allocate; a call that needs more fails"),
        ("cache", BOOL, False, NUM, "a call with the same arguments is not made again"),
    ),
)  # fmt: skip
RUBRIC = Kind(
    name="rubric",
    doc="the score of a rollout out of its rewards",
    settings=rows(
        ("score", EXPRESSION, REQUIRED, NUM, "expression over rewards"),
        ("on_truncated", Type(base="float", optional=True), None, NUM,
         "score of a completion cut at its length limit"),
        ("on_error", _ON_ERROR, "drop", NUM, "score of a rollout whose reward failed"),
    ),
)  # fmt: skip
ENVIRONMENT = Kind(
    name="environment",
    doc="what a policy plays against over several turns: a Python class, in processes of its own",
    settings=rows(
        ("procs", COUNT, 1, PLACE, "processes of its pool; each holds many trajectories"),
        ("tool_timeout", DURATION, 10.0, NUM,
         "longest call of a tool or of `step`; a later one is told to the policy"),
        ("deadline", replace(DURATION, optional=True), None, NUM,
         "longest life of a trajectory, which then ends with the turns that it has"),
        ("max_observation", COUNT, 256, NUM, "tokens of one observation; the rest is cut"),
        ("history", word("append", "template"), "append", NUM,
         "earlier turns of a chat: as they were said, or as the chat template writes them, each "
         "rewriting in a training row of its own"),
        ("on_error", _ON_ERROR, "drop", NUM,
         "score of a trajectory whose environment failed twice"),
    ),
)  # fmt: skip
SCHEDULE = Kind(
    name="schedule",
    singleton=True,
    labels=("sync", "async"),
    doc="how long, and how far sampling may run ahead of training",
    settings=rows(
        ("steps", replace(_COUNT, maximum=1e9, usual=(1, 1e7)), None, NUM, "optimizer steps"),
        ("epochs", replace(SOME, optional=True, usual=(1e-6, 1e4)), None, NUM,
         "passes over the dataset"),
        ("max_policy_age", replace(NATURAL, optional=True, usual=(0, 1000)), None, NUM,
         "oldest policy version a batch may hold, in steps"),
        ("window", Type(base="float", minimum=0.0, maximum=1.0), 0.0, NUM,
         "part of the buffer that may overtake"),
        ("on_stale", word("drop", "error"), "drop", NUM, "what to do with an older group"),
        ("starve_timeout", replace(DURATION, optional=True), None, OBS,
         "stop when no group arrives for so long"),
        ("restarts", replace(NATURAL, maximum=1000), 0, OBS,
         "times that a run whose service failed starts again from its last checkpoint"),
    ),
)  # fmt: skip
_SAMPLE = rows(
    ("sample.temperature", replace(POSITIVE, auto=True, usual=(0.0, 5.0)), AUTO, OBS,
     "auto is the generator's"),
    ("sample.top_p", replace(PART, auto=True), AUTO, OBS,
     "auto is the generator's"),
    ("sample.top_k", replace(COUNT, optional=True, auto=True), AUTO, OBS,
     "auto is the generator's"),
    ("sample.min_p", Type(base="float", minimum=0, maximum=1, auto=True), AUTO, OBS,
     "auto is the generator's"),
    ("sample.max_tokens", replace(COUNT, auto=True), AUTO, OBS, "auto is the generator's"),
    ("sample.n", COUNT, 1, OBS, "completions per prompt"),
)  # fmt: skip
EVAL = Kind(
    name="eval",
    doc="measures the policy while it trains: the score of answers that a generator samples, or a "
    "loss of held-out data",
    settings=(
        *rows(
            ("dataset", Type(base="ref", kinds=("dataset",)), REQUIRED, OBS, "prompts and targets"),
            ("split", _STR, None, OBS, "another split of the dataset's source"),
            ("source", replace(_DATA, optional=True), None, OBS, "other rows, same columns"),
            ("score", Type(base="ref", kinds=("reward", "rubric"), optional=True), None, OBS,
             "what to report of sampled answers"),
            ("loss", Type(base="loss", optional=True), None, OBS,
             "what to report of the dataset's own conversations or pairs, by the trainer, "
             "without an update; instead of `score`"),
            ("every", COUNT, REQUIRED, OBS, "optimizer steps between evaluations"),
            ("limit", _COUNT, None, OBS, "use so many rows"),
            ("env", Type(base="ref", kinds=("environment",), optional=True), None, OBS,
             "play in an environment, as the flow does"),
            ("max_turns", _COUNT, None, OBS, "turns of a trajectory, with `env`"),
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
         "from checkpoint to checkpoint; there is one at the end in any case"),
        ("keep", COUNT, 2, OBS, "how many stay"),
        ("grace", replace(DURATION, auto=True, usual=(10.0, 7200.0)), AUTO, OBS,
         "from SIGTERM to the end: for the step in progress and a checkpoint; schedulers give so "
         "much notice. auto is what the plan needs, at least 2min"),
        ("export", Type(base="ctor", ctors=c.EXPORTS, optional=True), None, OBS,
         "Hugging Face export at the end"),
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
         "port that Prometheus may ask for the last row; none is off"),
        ("wandb.project", _STR, None, OBS, "Weights & Biases project; none is off"),
        ("wandb.entity", _STR, None, OBS, "Weights & Biases entity"),
        ("wandb.mode", replace(word("online", "offline", "disabled"), optional=True), None, OBS,
         "Weights & Biases mode"),
        ("samples", NATURAL, 8, OBS, "sample completions kept per step"),
    ),
)  # fmt: skip

SYNC = Kind(
    name="sync",
    doc="weights go from a trainer to a generator",
    settings=rows(
        ("every", COUNT, 1, NUM, "optimizer steps between two syncs"),
        ("overlap", BOOL, True, NUM, "sampling goes on while weights travel"),
        (
            "on_swap",
            word("recompute", "keep"),
            "recompute",
            NUM,
            "what completions in flight do with keys and values of the old weights",
        ),
        ("transport", word("auto", *transports.NAMES), "auto", PLACE, "how they travel"),
        ("timeout", DURATION, 300.0, OBS, "longest sync"),
    ),
)

SERVICES = SCHEMAS
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        RUN, CLUSTER, LAUNCHER, COLOCATE, MODEL, DATASET, REWARD, RUBRIC, ENVIRONMENT,
        *(each.kind for each in declarations().values()), SCHEDULE, EVAL, CHECKPOINT, LOGGING,
    )
}  # fmt: skip
SINGLETONS = tuple(kind.name for kind in KINDS.values() if kind.singleton)
FUNCTION_KINDS = ("loss", "reward", "advantage", "filter", "fn")
ALL_KINDS = (*KINDS, "service", "flow", "profile", "loss", "advantage", "filter", "fn")
