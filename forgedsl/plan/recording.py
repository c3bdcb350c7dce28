"""Disk space that recorded steps take: `logging.record`.

lengths of completions, token fields of the flow -> bytes of a step: usual ones, and the most

The most is for completions of full length that do not compress. The usual size is that of
compressed columns, and of the lengths that the last run of this file had (`forgec calibrate`).
"""

from __future__ import annotations

from math import log2

from forgedsl.ir.graph import Graph, Node
from forgedsl.plan.calibration import share
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
LOGPROB = 1.6
"""usual bytes of a compressed log-prob: many tokens are almost certain (measured: 1.3 to 1.6 at an
entropy of 0.27 nats)"""
NUMBERS = 32
"""usual bytes of the numbers of a completion, with its share of the file (measured)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a run records. `steps` is None if that is not known: all steps of a run without a fixed
    length. Sizes in bytes; `step_bytes` is the most of a step, `usual_bytes` the usual."""

    steps: int | None
    step_bytes: int
    usual_bytes: int
    limit: int | None

    @property
    def bytes(self) -> int | None:
        """Return the most that is on disk at a time."""
        return self._of_all(self.step_bytes)

    @property
    def usual(self) -> int | None:
        """Return the usual size of all kept steps."""
        return self._of_all(self.usual_bytes)

    def _of_all(self, size: int) -> int | None:
        found = [] if self.steps is None else [self.steps * size]
        return min([*found, *([] if self.limit is None else [self.limit])], default=None)


def recording(graph: Graph, plan: Plan) -> Recording | None:
    """Return what the run of a plan records; None if nothing."""
    settings = plan.request.program.singletons["logging"].settings
    steps, limit = settings["record.steps"].value, settings["record.disk"].value
    samples = graph.having(Role.SAMPLES)
    if steps is None or not samples:
        return None
    sizes = PlannedSizes(plan.request, graph)
    most, usual = zip(*(_bytes_of(graph, plan, sizes, node) for node in samples), strict=True)
    planned = plan.schedule.steps
    kept = planned if steps == "all" else steps if planned is None else min(steps, planned)
    return Recording(steps=kept, step_bytes=FILE + sum(most), usual_bytes=sum(usual), limit=limit)


def size_text(size: int) -> str:
    """Return a size for people: `52 KiB`, `1.3 MiB`, `1.0 GiB`."""
    for limit, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= limit:
            return f"{size / limit:,.1f} {unit}"
    return f"{size / 2**10:,.0f} KiB"


def _bytes_of(graph: Graph, plan: Plan, sizes: PlannedSizes, node: Node) -> tuple[int, int]:
    """Return the bytes of the completions of a node in a step: the most, and the usual ones."""
    prompt, _ = sizes.lengths(node)
    new = max(1, sizes.full_length(node) - prompt)
    epochs, _ = graph.updates
    # behavior, the trainer's log-probs of each pass, and values of other models
    logprobs = 1 + epochs + len(graph.having(Role.MEASURES))
    count = completions(graph, node)
    prompts = 2 * prompt * (count // max(1, int(node.settings["n"])))
    most = count * (COMPLETION + TOKEN * (2 + logprobs) * new) + TOKEN * prompts
    part = share(plan.request.program, plan.request.host, node.name)
    dims = plan.request.dims[node.target]
    written = TOKEN if dims is None else log2(dims.vocab) / 8  # a token's id, and its text
    usual = count * (NUMBERS + (2 * written + LOGPROB * logprobs) * part * new) + written * prompts
    return most, min(most, round(usual))
