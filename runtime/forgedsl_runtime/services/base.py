"""Behaviour of a kind of service in the runtime.

The class of a kind in a job is a `Sampler` or a `Trainer`. A sampler runs each replica on a mesh of
its own; its client is services/generator.py, and its actors have the endpoints of `vllm/actor.py`.
A trainer is a model on one mesh of ranks; its client is services/trainer.py, and its actors have
the endpoints of `titan/actor.py`. A kind needs no code for rehearsals: stubs replace its samplers
and trainers, with the latencies that the plan estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forgedsl.lower import job as spec

Export = Callable[[spec.Model, spec.Service, Path, Path, Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of service.

    actor   returns the class of its processes; the first call imports what they need
    load    imports the same, given the device ("cpu", "cuda"). A process calls it as it starts,
            while the controller still imports the class
    aborts  its actors have `abort`, which ends requests that nobody waits for any more
    spoilt  checks if files of its checkpoint are damaged: it returns what is wrong, or ""
    export  writes the weights of a checkpoint in Hugging Face layout:
            (model, service, folder of the model, checkpoint, target)
    export_adapter  like `export`, for an adapter alone in the layout of PEFT
    """

    name: str
    actor: Callable[[spec.Service], type]
    load: Callable[[str], object] = lambda device: None
    aborts: bool = False
    spoilt: Callable[[Path], str] = lambda folder: ""
    export: Export | None = None
    export_adapter: Export | None = None
