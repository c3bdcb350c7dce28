"""A torchtitan model in a job."""

from __future__ import annotations

from typing import Literal

from forgedsl.job.parts import Trainer


class TitanService(Trainer):
    """A torchtitan model."""

    kind: Literal["titan"] = "titan"
    activation_checkpoint: Literal["none", "selective", "full"] = "none"
    offload: bool = False
    """True if weights, gradients and moments are kept in the host's memory"""
    keep_weights: bool = False
    """True if gathered weights are kept until the last microbatch of an update"""
    compile: bool = False
