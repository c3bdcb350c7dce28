"""Kinds of services are known by name to their units alone (docs/design/services.md)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNTIME = "runtime/forgedsl_runtime"
UNITS = (
    "forgedsl/services/titan/", "forgedsl/services/vllm/", "forgedsl/services/registry.py",
    f"{RUNTIME}/services/titan/", f"{RUNTIME}/services/vllm/", f"{RUNTIME}/services/registry.py",
)  # fmt: skip
PACKAGES = (
    "forgedsl/cli/machine.py",
    "forgedsl/lower/lock.py",
    "runtime/forgedsl_runtime/actors/base.py",
)
"""which name the Python packages"""
LEFT = {
    "forgedsl/schema/constructors.py",  # `vllm("NAME")` names a tool parser of the package
    "forgedsl/lower/job.py",  # has the names of all that a job is made of
    f"{RUNTIME}/api/program.py",  # methods `titan` and `vllm` of programs in Python
    f"{RUNTIME}/replay.py",  # a trainer alone, with other memory settings than its own
}


def test_kinds_are_named_in_their_units_alone() -> None:
    word = re.compile(r"\"(titan|vllm)\"|\b(Titan|Vllm)(Service|Shape)\b")
    found = {
        name
        for folder in ("forgedsl", "runtime")
        for path in (ROOT / folder).rglob("*.py")
        if not (name := path.relative_to(ROOT).as_posix()).startswith((*UNITS, *PACKAGES))
        and word.search(path.read_text(encoding="utf-8"))
    }
    assert found == LEFT
