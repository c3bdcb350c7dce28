"""The page of a Session in a notebook: its state, and a row for each handle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from forgedsl.notebook import page

if TYPE_CHECKING:
    from forgedsl.lower.job import Job
    from forgedsl.python.handles import Handle


def session_page(
    title: str, job: Job, handles: Mapping[str, Handle], step: int | None, states: Iterable[str]
) -> str:
    """HTML of a Session: models, what each handle is and which calls it has, steps so far."""
    from forgedsl.runs.page import model_text

    rows = {f"model {name}": model_text(model) for name, model in job.models.items()}
    rows |= {f's["{name}"]': _handle(job, handle) for name, handle in handles.items()}
    rows["last step logged"] = "none yet" if step is None else str(step)
    rows["saved states"] = ", ".join(states)
    return page(title, rows=rows)


def _handle(job: Job, handle: Handle) -> str:
    """`Trainer of policy on cpu, version 3: forward_backward, optim_step, ...`."""
    service = job.services.get(handle.name)
    of = "" if service is None else f" of {service.model} on {service.mesh.device}"
    version = getattr(handle, "version", None)
    at = "" if version is None else f", version {version}"
    kind = type(handle)
    calls = [
        name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))
    ]
    return f"{kind.__name__}{of}{at}: {', '.join(calls)}"
