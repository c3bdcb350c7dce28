"""Faults to inject into a simulation or a rehearsal.

kill:generator[1]@step=5       the processes of a replica die
slow:generator[0]=3@step=2..6  a straggler: three times as slow for these steps
slow:correct=20                a reward that takes twenty times as long, from the start
fail:generator=0.02            that share of completions (or calls of a reward) fails
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forgedsl.records import dataclass
from forgedsl.services.registry import kind_of

if TYPE_CHECKING:
    from forgedsl.lower.job import Job

KINDS = ("kill", "slow", "fail")
FORM = re.compile(
    r"(?P<kind>\w+):(?P<target>[A-Za-z_]\w*(?:\.\w+)*)(?:\[(?P<index>\d+)\])?"
    r"(?:=(?P<value>[0-9.]+))?(?:@step=(?P<first>\d+)(?:\.\.(?P<last>\d+))?)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault. It begins before step `first` (1: at the start); `last` is the last step with it."""

    kind: str
    target: str
    index: int | None = None
    """index of a replica; None: the first one for `kill`, all for `slow`"""
    value: float = 0.0
    first: int = 1
    last: int | None = None

    @property
    def text(self) -> str:
        place = self.target if self.index is None else f"{self.target}[{self.index}]"
        steps = (
            f" at step {self.first}"
            if self.last is None
            else f" in steps {self.first} to {self.last}"
        )
        when = "" if self.first == 1 and self.last is None else steps
        if self.kind == "kill":
            return f"{place} dies{when}"
        if self.kind == "slow":
            return f"{place} is {self.value:g} times as slow{when}"
        return f"{self.value:.1%} of the calls of {place} fail{when}"


def parse(text: str) -> Fault:
    """Parse a fault. Raises ValueError with the syntax."""
    found = FORM.fullmatch(text.strip())
    if found is None or found["kind"] not in KINDS:
        raise ValueError(
            f"`{text}` is not a fault; write kill:SERVICE[REPLICA]@step=5, "
            "slow:SERVICE[REPLICA]=3, slow:REWARD=20@step=2..6 or fail:SERVICE=0.02"
        )
    if (found["kind"] == "kill") is (found["value"] is not None):
        wants = "no value" if found["kind"] == "kill" else "a value, such as =3"
        raise ValueError(f"`{text}`: {found['kind']} takes {wants}")
    value = float(found["value"] or 0)
    if (found["kind"] == "fail" and value >= 1) or (found["kind"] == "slow" and value <= 0):
        raise ValueError(f"`{text}`: a fraction must be below 1, a factor above 0")
    return Fault(
        kind=found["kind"],
        target=found["target"],
        index=int(found["index"]) if found["index"] else None,
        value=value,
        first=int(found["first"] or 1),
        last=int(found["last"]) if found["last"] else None,
    )


def check(fault: Fault, job: Job) -> Fault:
    """Return the fault if the job has its target. Raises ValueError with the possible targets."""
    services = job.services if fault.kind == "fail" else job.with_processes
    known = [*services, *(job.rewards if fault.kind != "kill" else ())]
    if fault.target not in known:
        raise ValueError(
            f"`{fault.target}` is not a {_what(fault)} here; there is {', '.join(known)}"
        )
    service = job.services.get(fault.target)
    if fault.kind != "kill" and service is not None and not kind_of(service.kind).samples:
        raise ValueError(
            f"`{fault.kind}` is possible only for generators and rewards, not for {fault.target}"
        )
    replicas = 1 if service is None else service.mesh.replicas
    if fault.index is not None and fault.index >= replicas:
        raise ValueError(f"`{fault.target}` has {replicas} replicas, but no [{fault.index}]")
    return fault


def _what(fault: Fault) -> str:
    return "service" if fault.kind == "kill" else "service or reward"


def faults_due(faults: Sequence[Fault], step: int) -> tuple[list[Fault], list[Fault]]:
    """Return the faults that begin and those that end before `step`."""
    begin = [fault for fault in faults if fault.first == step]
    end = [fault for fault in faults if fault.last is not None and fault.last + 1 == step]
    return begin, [fault for fault in end if fault.kind != "kill"]
