"""All model families, and look-ups by name, by config.json and by hub name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from forgedsl.families import (
    glm4_moe,
    llama3,
    mistral,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    seed_oss,
    smollm2,
    smollm3,
)
from forgedsl.families.base import Dims, Family, Unsupported
from forgedsl.records import replace

FAMILIES: tuple[Family, ...] = (
    qwen2.FAMILY,
    qwen3.FAMILY,
    qwen3_moe.FAMILY,
    glm4_moe.FAMILY,
    llama3.FAMILY,
    smollm2.FAMILY,
    smollm3.FAMILY,
    mistral.FAMILY,
    seed_oss.FAMILY,
    phi3.FAMILY,
)

UNSUPPORTED = (
    r"(google/(?:code)?gemma|microsoft/[Pp]hi|openai/gpt-oss|openai-community|deepseek-ai/"
    r"(?:DeepSeek-V|DeepSeek-R1(?!-Distill)|deepseek-moe)|moonshotai/Kimi|mistralai/Mixtral"
    r"|zai-org/GLM|THUDM/|allenai/OL|tiiuae/|EleutherAI/|state-spaces/|meta-llama/Llama-4"
    r"|Qwen/(?:Qwen3\.5|Qwen3-Next|Qwen[0-9.]*-(?:VL|Omni|Audio)))"
)
"""hub names of well-known models of unsupported families"""


def family(name: str) -> Family:
    """Return the family of this name."""
    return next(f for f in FAMILIES if f.name == name)


def by_config(config: Mapping[str, Any]) -> tuple[Family, Dims]:
    """Return family and dimensions of a model by its config.json.

    Raises:
        Unsupported: no family supports it.
    """
    kind = str(config.get("model_type", ""))
    found = next((f for f in FAMILIES if f.model_type == kind), None)
    if found is None:
        raise Unsupported(f'models of type "{kind}" are not supported')
    return found, found.read(config)


def by_hub_name(model_id: str) -> tuple[Family, Dims] | None:
    """Return family and dimensions of a published model by its hub name, "Qwen/Qwen3-4B-Base".

    Raises:
        Unsupported: the model is of an unsupported family.
    """
    for candidate in FAMILIES:
        for pattern, changes in candidate.hub:
            match = re.fullmatch(pattern, model_id)
            if match is None:
                continue
            size = changes.get("size") or match[1]
            if size in candidate.sizes:
                changed = {name: value for name, value in changes.items() if name != "size"}
                return candidate, replace(candidate.sizes[size], **changed)
    if re.match(UNSUPPORTED, model_id):
        raise Unsupported(f'the family of "{model_id}" is not supported')
    return None


ROLES = ("<|user|>", "<|observation|>")
"""end tokens of GLM, which templates of other models have as plain text"""


def end_tokens() -> dict[str, str]:
    """Return the end tokens of all families, each with the name of a family, without those that are
    plain text elsewhere."""
    return {end: each.name for each in FAMILIES for end in each.ends if end not in ROLES}


def names() -> str:
    """The names of all families, for messages."""
    return ", ".join(f"{f.name} (model_type {f.model_type})" for f in FAMILIES)
