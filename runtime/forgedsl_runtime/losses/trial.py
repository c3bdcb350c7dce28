"""Try out losses that are Python classes: make each and call it once on random rows.

python -m forgedsl_runtime.losses.trial JOB   ->   {"my_loss": "why it cannot be used"} as JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from forgedsl.lower.job import Job, Loss
from forgedsl_runtime.losses.function import LossFunction
from forgedsl_runtime.losses.pymodule import ModuleError

SHAPE, VOCABULARY = (2, 4), 8


def main() -> int:
    job = Job.model_validate_json(Path(sys.argv[1]).read_text("utf-8"))
    found = {name: failure(spec) for name, spec in job.losses.items() if spec.python}
    print(json.dumps({name: why for name, why in found.items() if why}))
    return 0


def failure(spec: Loss) -> str:
    """Return why the class cannot be used as a loss; "" if it can."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(*SHAPE, VOCABULARY, generator=draw, requires_grad=True)
    inputs: dict[str, Any] = {"labels": torch.randint(VOCABULARY, SHAPE, generator=draw)}
    try:
        loss = LossFunction.from_job(spec, "torch")
        for field in spec.fields:
            if field.name in loss.input_names:
                shape = SHAPE if "T" in field.axes else SHAPE[:1]
                number = torch.randn(shape, generator=draw)
                inputs[field.name] = number > 0 if field.dtype == "bool" else number
        torch.autograd.backward(loss(logits=logits, **inputs).loss)
    except ModuleError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main())
