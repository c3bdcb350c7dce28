"""The generic executor of a job: nodes, channels, credits, versions, failures.

    Job + Endpoints + EventLog --Controller.run()--> Outcome, events, checkpoints

flow (static view) -> group_source (draw, credits) -> firing (nodes of a group) -> assembly (batch)
-> core (trainer loop, transfers, evaluations, ends). Nothing here knows an algorithm, torch or a
transport.
"""

from forgedsl_runtime.controller.core import Controller, Outcome

__all__ = ["Controller", "Outcome"]
