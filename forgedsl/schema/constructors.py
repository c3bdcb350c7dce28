"""Constructors: the call-shaped values of settings, with their parameters.

Constructors are grouped by type of setting, because a name can mean different things: `hf` is a
model in `source` of a model, and rows in `source` of a dataset.
"""

from __future__ import annotations

from collections.abc import Mapping

from forgedsl.families.base import Family
from forgedsl.families.registry import FAMILIES
from forgedsl.records import replace
from forgedsl.settings import (
    BOOL,
    COUNT,
    FLOAT,
    INT,
    NATURAL,
    POSITIVE,
    REQUIRED,
    STR,
    Parameter,
    Signature,
    Type,
    word,
)
from forgedsl.vllm_parsers import NAMES, VERSION


def _group(*signatures: Signature) -> Mapping[str, Signature]:
    return {signature.name: signature for signature in signatures}


def _signature(name: str, doc: str, *params: Parameter) -> Signature:
    return Signature(name=name, params=params, doc=doc)


def _param(
    name: str, type_: Type, default: object = REQUIRED, *, keyword: bool = False
) -> Parameter:
    return Parameter(name=name, type=type_, default=default, keyword=keyword)


_OPTIONAL_STR = replace(STR, optional=True)

MODEL_SOURCES = _group(
    _signature(
        "hf",
        "a model of the Hugging Face hub",
        _param("id", STR),
        _param("revision", _OPTIONAL_STR, None, keyword=True),
    ),
    _signature("local", "a folder in Hugging Face layout", _param("path", STR)),
    _signature("random", "random weights", _param("seed", NATURAL)),
)
TOKENIZERS = {name: MODEL_SOURCES[name] for name in ("hf", "local")}
ADAPTERS = TOKENIZERS

_DIMS = (
    ("layers", COUNT),
    ("hidden", COUNT),
    ("heads", COUNT),
    ("kv_heads", COUNT),
    ("head_dim", COUNT),
    ("ffn", COUNT),
    ("vocab", COUNT),
    ("rope_theta", FLOAT),
    ("tied", BOOL),
)
_EXPERTS = (("experts", COUNT), ("active", COUNT))
_SHARED = (("shared", COUNT), ("dense_first", NATURAL), ("dense_ffn", COUNT))
_NO_ROPE = (("no_rope_interval", COUNT),)


def architecture(family: Family) -> Signature:
    """`qwen3("1.7B")` or `qwen3(layers = ..., ...)`."""
    rows = (
        *_DIMS,
        *(_EXPERTS if "experts" in family.keys else ()),
        *(_SHARED if family.with_shared else ()),
        *(_NO_ROPE if family.with_no_rope else ()),
    )
    return _signature(
        family.name,
        f"{family.doc}: a named size, its dimensions, or a size with changes",
        _param("size", Type(base="str", words=tuple(family.sizes), optional=True), None),
        *(_param(name, replace(t, optional=True), None, keyword=True) for name, t in rows),
    )


ARCHITECTURES = _group(*(architecture(family) for family in FAMILIES))

REASONING_GYM = _signature(
    "reasoning_gym",
    "problems that reasoning-gym makes; further arguments are those of the task",
    _param("task", STR),
    _param("size", COUNT, 500, keyword=True),
    _param("seed", NATURAL, 0, keyword=True),
)
"""`source = reasoning_gym("leg_counting", size = 1000, seed = 7, min_animals = 2)`"""

_ROWS = (
    _signature(
        "hf",
        "a dataset of the Hugging Face hub",
        _param("id", STR),
        _param("config", _OPTIONAL_STR, None, keyword=True),
        _param("split", _OPTIONAL_STR, None, keyword=True),
        _param("revision", _OPTIONAL_STR, None, keyword=True),
    ),
    _signature("jsonl", "one JSON object per line", _param("path", STR)),
    _signature("parquet", "an Apache Parquet file", _param("path", STR)),
    _signature("csv", "a CSV file with a header; all values are text", _param("path", STR)),
    _signature("json", "a file with one JSON list of objects", _param("path", STR)),
    _signature("disk", "a folder of `Dataset.save_to_disk`, of one split", _param("path", STR)),
    REASONING_GYM,
)
DATA_SOURCES = _group(
    *_ROWS,
    _signature(
        "mixture",
        "rows drawn from several sources",
        _param("sources", Type(base="list", item=Type(base="ctor", ctors=_group(*_ROWS)))),
        _param("weights", Type(base="list", item=POSITIVE), keyword=True),
    ),
)

TOOL_CALLS = _group(
    _signature(
        "vllm",
        f"the tool parser of this name in vLLM ({VERSION}), for forms that ForgeDSL does not read",
        _param("name", Type(base="str", words=NAMES)),
    )
)
SEED = _group(_signature("seed", "shuffled in the order of this seed", _param("seed", NATURAL)))
EXPORTS = _group(_signature("hf", "a folder in Hugging Face layout", _param("path", STR)))

GRADES = Type(base="list", item=NATURAL, size=2)
JUDGE = _signature(
    "score",
    "the grade that a model gives: the expected grade under its next-token distribution, or the "
    "answer of an endpoint",
    _param("prompt", STR),
    _param("scale", GRADES, [1, 5], keyword=True),
    _param("range", Type(base="list", item=FLOAT, size=2), [0.0, 1.0], keyword=True),
)
"""`judge.score(prompt = "... {prompt} ... {response} ...", scale = [1, 5])`"""

PROGRAM = _signature(
    "program",
    "an agent that is a program: a command with arguments, started once per trajectory. Address, "
    "key and task are in its environment variables",
    _param("command", Type(base="list", item=STR)),
    _param("parts", Type(base="list", item=STR), ["reward"], keyword=True),
    _param("reward", word("last_line", "exit", "file", "none"), "last_line", keyword=True),
    _param("stdin", BOOL, False, keyword=True),
    _param("variables", Type(base="list", item=STR), [], keyword=True),
    _param("files", Type(base="list", item=STR), [], keyword=True),
    _param("concurrency", replace(COUNT, optional=True), None, keyword=True),
)
"""`environment desk = program(["python", "desk.py"], parts = ["right"])`"""

GYMNASIUM = _signature(
    "gymnasium",
    "an environment that gymnasium knows by a name, with observations and actions as text; further "
    "arguments are those of its class",
    _param("id", STR),
    _param("actions", Type(base="list", item=STR, optional=True), None, keyword=True),
    _param("observation", _OPTIONAL_STR, None, keyword=True),
    _param("max_episode_steps", replace(COUNT, optional=True), None, keyword=True),
)
"""`environment lake = gymnasium("FrozenLake-v1", is_slippery = false)`"""

STANDARD_REWARDS = _group(
    _signature(
        "math_equal",
        "1 if the answer equals the target mathematically; `partial` if a number equals it that "
        "is not the answer. The answer is the last `<answer>` tag, else the last `\\boxed`, else "
        "the last number. `which = first` takes the first of them; `first_tag` and `last_tag` "
        "accept a tag only",
        _param("tolerance", replace(FLOAT, minimum=0.0), 1e-6),
        _param("partial", replace(FLOAT, minimum=0.0, maximum=1.0), 0.0, keyword=True),
        _param("which", word("last", "first", "last_tag", "first_tag"), "last", keyword=True),
    ),
    _signature(
        "think_tags",
        "1 for one <think> block followed by one <answer> block, neither blank; with `which = "
        "any`, 1 for a <think> block that is not blank (several or nested ones are allowed). "
        "`partial` if any of the tags occurs. `tag` is another name for `think`. Case and spaces "
        "in a tag do not matter",
        _param("partial", replace(FLOAT, minimum=0.0, maximum=1.0), 0.0),
        _param("which", word("pair", "any"), "pair", keyword=True),
        _param("tag", STR, "think", keyword=True),
    ),
    _signature(
        "exact",
        "1 if the completion equals the target",
        _param("strip", BOOL, True),
        _param("lower", BOOL, False),
    ),
    _signature(
        "contains",
        "1 if the completion contains `text` (default: the target)",
        _param("text", _OPTIONAL_STR, None),
        _param("lower", BOOL, False),
    ),
    _signature(
        "format_regex",
        "1 if the whole completion matches the regular expression",
        _param("pattern", STR),
    ),
    _signature(
        "overlong",
        "0 up to `soft` tokens, then falling to -1 at `hard` (DAPO, 2503.14476)",
        _param("soft", INT),
        _param("hard", INT),
    ),
    _signature(
        "reasoning_gym",
        "what `score_answer` of the task gives for the text in the last `<answer>` tag, 0 to 1; "
        "for rows of `reasoning_gym(...)`. Without a tag there is no answer; with "
        "`whole = true` it is then the whole completion",
        _param("whole", BOOL, False, keyword=True),
    ),
)
