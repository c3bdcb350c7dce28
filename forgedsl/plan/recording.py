"""Upper bound of the disk space that recorded steps take: `logging.record`.

lengths of completions, token fields of the flow -> bytes of a step, bytes of all kept steps
"""

from __future__ import annotations

from forgedsl.ir.graph import Graph, Node
from forgedsl.plan.plan import Plan
from forgedsl.plan.sizes import PlannedSizes, completions
from forgedsl.records import dataclass
from forgedsl.types.flow import Role

TOKEN = 4
"""bytes of a token id, a log-prob, and of the text of a token"""
COMPLETION = 200
"""bytes of the numbers of a completion"""
FILE = 16 * 2**10
"""bytes of a file without completions: names and statistics of its columns"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a run records. `steps` is None if that is not known: all steps of a run without a fixed
    length. Sizes in bytes."""

    steps: int | None
    step_bytes: int
    limit: int | None

    @property
    def bytes(self) -> int | None:
        """Return the most that is on disk at a time."""
        found = [] if self.steps is None else [self.steps * self.step_bytes]
        return min([*found, *([] if self.limit is None else [self.limit])], default=None)


def recording(graph: Graph, plan: Plan) -> Recording | None:
    """Return what the run of a plan records; None if nothing."""
    settings = plan.request.program.singletons["logging"].settings
    steps, limit = settings["record.steps"].value, settings["record.disk"].value
    samples = graph.having(Role.SAMPLES)
    if steps is None or not samples:
        return None
    sizes = PlannedSizes(plan.request, graph)
    size = FILE + sum(_bytes_of(graph, sizes, node) for node in samples)
    planned = plan.schedule.steps
    kept = planned if steps == "all" else steps if planned is None else min(steps, planned)
    return Recording(steps=kept, step_bytes=size, limit=limit)


def size_text(size: int) -> str:
    """Return a size for people: `52 KiB`, `1.3 MiB`, `1.0 GiB`."""
    for limit, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= limit:
            return f"{size / limit:,.1f} {unit}"
    return f"{size / 2**10:,.0f} KiB"


def _bytes_of(graph: Graph, sizes: PlannedSizes, node: Node) -> int:
    prompt, _ = sizes.lengths(node)
    new = max(1, sizes.full_length(node) - prompt)
    epochs, _ = graph.updates
    # text, ids, behavior, the trainer's log-probs of each pass, and values of other models
    fields = 3 + epochs + len(graph.having(Role.MEASURES))
    count = completions(graph, node)
    groups = count // max(1, int(node.settings["n"]))
    return count * (COMPLETION + TOKEN * fields * new) + groups * 2 * TOKEN * prompt
