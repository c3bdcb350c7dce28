"""Service `openai`: a model behind an OpenAI-compatible HTTP endpoint, used as a judge."""

from __future__ import annotations

from forgedsl.records import replace
from forgedsl.services.base import NUM, PLACE, Capability, ServiceKind, row
from forgedsl.settings import BOOL, COUNT, REQUIRED, STR, Kind, Type, word

SCHEMA = Kind(
    name="service",
    doc="a model behind an endpoint in the OpenAI form, outside of the plan; it judges",
    settings=(
        row("url", STR, REQUIRED, PLACE, "where it answers, `/v1` included"),
        row("key", replace(STR, optional=True), None, PLACE,
            "name of the environment variable that holds the key; the key itself stands nowhere"),
        row("max_tokens", COUNT, 64, NUM, "longest answer"),
        row("structured", BOOL, True, NUM,
            "the endpoint holds the answer to a JSON schema; else it is to be the grade alone"),
        row("rename", Type(base="list", item=STR), [], NUM,
            'fields of the request under another name: "max_tokens=max_completion_tokens"'),
        row("omit", Type(base="list", item=word("max_tokens", "temperature")), [], NUM,
            "fields that are left out of the request"),
    ),
)  # fmt: skip

KIND = ServiceKind(name="openai", schema=SCHEMA, can=frozenset({Capability.JUDGES}), remote=True)
