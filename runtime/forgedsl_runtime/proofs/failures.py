"""Error texts for proofs of the first batch that do not hold. This module imports no torch, because
the controller needs the texts also where torch is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REASON = "a kink of the loss"
"""why the proof is turned off, in the setting that the text of an error proposes"""


def failure(line: Mapping[str, Any]) -> str:
    """Return the error text for a line of proofs.jsonl; "" if its proof holds."""
    if line.get("holds") is not False:
        return ""
    if line["proof"] == "masks":
        return (
            f"masked tokens reach loss `{line['loss']}`: with NaN in their fields, "
            f"{', '.join(line['changed'])} changed"
        )
    text = (
        f"loss `{line['loss']}` differs from its expression: {line['kernel']} gives "
        f"{line['value']:.8g}, "
        f"the expression in float64 {line['value_float64']:.8g}; the gradients differ by "
        f"{line['gradient_apart']:.2g} of their norm (at most {line['bounds'][1]:g})"
    )
    apart = abs(line["value"] - line["value_float64"])
    if apart > line["bounds"][0] * max(1.0, abs(line["value_float64"])):
        return text
    return (
        f"{text}. The values agree, so a token may lie at a kink of the loss (abs, clamp, min, "
        "max), where rounding decides. If the loss has one, go on with "
        f'`proofs {{ off {{ loss = "{REASON}" }} }}`'
    )
