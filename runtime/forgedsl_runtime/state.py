"""State of the controller in a checkpoint: plain JSON, one dataclass.

    Controller --Endpoints.save(step, state.to_json())--> checkpoint --> Controller(state=...)

Groups in flight are stored as positions in their dataset, not as rollouts: a resumed run draws
them again under the same ids. Metrics records that wait for an evaluation are stored as they are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from forgedsl.errors import RunError

FORMAT = 1


@dataclass(slots=True, kw_only=True)
class ControllerState:
    """Controller state; the defaults are those of a new run."""

    step: int = 0
    """optimizer steps done"""
    versions: dict[str, int] = field(default_factory=dict)
    """policy version by trained service"""
    ledgers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """by source node"""
    evaluated: dict[str, int] = field(default_factory=dict)
    """by eval: the step of its last result"""
    first: dict[str, tuple[int, float]] = field(default_factory=dict)
    """by eval: step and value of its first result, which later ones are compared with"""
    recorded: int = 0
    """last step whose metrics record was written; a resumed run writes from the next one on"""
    records: list[dict[str, Any]] = field(default_factory=list)
    """records of done steps that are not written yet"""
    replay: dict[str, int] = field(default_factory=dict)
    """by buffer: number of its groups in `replay.npz` of the checkpoint"""
    wall_s: float = 0.0
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ControllerState:
        if data["format"] != FORMAT:
            raise RunError(
                f"the checkpoint has controller state format {data['format']}, this version "
                f"reads {FORMAT}",
                remedy="resume with the version of forgedsl that wrote it",
            )
        return cls(**data)
