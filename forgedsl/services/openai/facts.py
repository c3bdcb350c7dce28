"""Service `openai`: a model behind an OpenAI-compatible HTTP endpoint, used as a judge."""

from __future__ import annotations

from forgedsl.records import replace
from forgedsl.services.base import NUM, PLACE, Capability, ServiceKind, row
from forgedsl.settings import BOOL, COUNT, REQUIRED, STR, Kind, Type, word

SCHEMA = Kind(
    name="service",
    doc="a judge model behind an OpenAI-compatible HTTP endpoint, which the run does not start",
    settings=(
        row("url", STR, REQUIRED, PLACE, "base address of the endpoint, including `/v1`"),
        row("key", replace(STR, optional=True), None, PLACE,
            "name of the environment variable with the API key; the key itself is not stored"),
        row("max_tokens", COUNT, 64, NUM, "maximum number of tokens of an answer"),
        row("structured", BOOL, True, NUM,
            "the endpoint enforces a JSON schema for the answer; false: the prompt asks for the "
            "grade alone"),
        row("rename", Type(base="list", item=STR), [], NUM,
            'request fields to rename, such as "max_tokens=max_completion_tokens"'),
        row("omit", Type(base="list", item=word("max_tokens", "temperature")), [], NUM,
            "request fields to omit"),
    ),
)  # fmt: skip

KIND = ServiceKind(name="openai", schema=SCHEMA, can=frozenset({Capability.JUDGES}), remote=True)
