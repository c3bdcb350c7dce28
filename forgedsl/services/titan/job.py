"""A torchtitan model in a job."""

from __future__ import annotations

from typing import Literal

from forgedsl.job.parts import Trainer


class TitanService(Trainer):
    """A torchtitan model."""

    kind: Literal["titan"] = "titan"
    activation_checkpoint: Literal["none", "selective", "full"] = "none"
    offload: bool = False
    """weights, gradients and moments are in the host's memory"""
    compile: bool = False
