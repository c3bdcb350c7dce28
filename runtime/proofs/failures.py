"""What a proof of the first batch that does not hold says about the run. The controller needs
this, also where torch is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def failure(line: Mapping[str, Any]) -> str:
    """Return what a proof that does not hold says about the run; "" if it holds."""
    if line.get("holds") is not False:
        return ""
    if line["proof"] == "masks":
        return (
            f"tokens that do not count reach loss `{line['loss']}`: with NaN in their fields "
            f"{', '.join(line['changed'])} changed"
        )
    return (
        f"loss `{line['loss']}` is not its expression: {line['kernel']} gives {line['value']:.8g}, "
        f"the expression in float64 {line['value_float64']:.8g}; the gradients differ by "
        f"{line['gradient_apart']:.2g} of their norm (at most {line['bounds'][1]:g})"
    )
