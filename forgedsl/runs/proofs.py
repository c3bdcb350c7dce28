"""Lines of proofs.jsonl in words: what was checked, and what came out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forgedsl.diagnostics import counted
from forgedsl.runs.data import Row, RunData

OF_FIRST_BATCH = ("masks", "loss")


def table(data: RunData) -> list[tuple[str, str]]:
    """Return each proof with its result, once."""
    return list(dict.fromkeys((str(line["proof"]), text(line)) for line in data.proofs))


def newest(data: RunData) -> list[tuple[str, str]]:
    """Return each proof once, of several starts the newest result, and all results that do not
    hold."""
    found = {}
    for line in data.proofs:
        of = (line["proof"], line.get("service"), line.get("loss"))
        found[of if line.get("holds", True) else (*of, text(line))] = line
    return [(str(line["proof"]), text(line)) for line in found.values()]


def closing(lines: Sequence[Row]) -> Iterator[str]:
    """Yield the results of the start and the first batch, and the proofs that are off."""
    starts = [line for line in lines if line["proof"] == "start" and line.get("holds")]
    if starts:
        services = " and ".join(dict.fromkeys(str(line["service"]) for line in starts))
        yield f"the first publication replaced all random weights of {services}"
    if bases := [str(line["service"]) for line in lines if line["proof"] == "base"]:
        engines = " and ".join(dict.fromkeys(bases))
        yield f"{engines} adds the adapter to the trainer's base weights, bit for bit"
    yield from (text(line) for line in lines if line["proof"] == "frozen" and "like" in line)
    masks = [line for line in lines if line["proof"] == "masks" and "off" not in line]
    losses = [line for line in lines if line["proof"] == "loss" and "off" not in line]
    if masks and all(line["holds"] for line in masks):
        yield "masked tokens have no influence on the loss"
    if losses and all(line["holds"] for line in losses):
        names = dict.fromkeys(str(line["loss"]) for line in losses)
        far = max(line["gradient_apart"] for line in losses)
        error = f"gradient error: {far:.1e} of its norm"
        yield f"{' and '.join(names)} checked against float64 ({error})"
    for name, reason in {line["proof"]: line["off"] for line in lines if "off" in line}.items():
        yield f"{name} off: {reason}"


def text(line: Row) -> str:
    """Return the result of a proof."""
    if "off" in line:
        return f"off: {line['off']}"
    match line["proof"]:
        case "start":
            return _start(line)
        case "base":
            return (
                f"{line['service']} adds the adapter to the trainer's base weights: "
                f"{counted(line['tensors'], 'tensor')} are the same bit for bit"
            )
        case "masks":
            return _masks(line)
        case "loss":
            return _loss(line)
        case "publications":
            return _publications(line)
        case "gap":
            return (
                f"log-probs of trainer and sampler differ by at most {line['largest_mean']:.2g} at "
                f"age 0 in the mean of a step ({counted(line['steps'], 'step')} compared)"
            )
        case "frozen" if "like" in line:
            what = counted(line["tensors"], "tensor")
            return f"{line['service']} has the random weights of {line['like']}, {what} bit for bit"
        case "frozen":
            return (
                f"{line['service']} holds {line['proved']} of {counted(line['tensors'], 'tensor')} "
                "bit for bit as its model folder has them"
            )
    return ", ".join(f"{key} {value}" for key, value in line.items() if key != "proof")


def _start(line: Row) -> str:
    name = line["service"]
    if line["holds"] is None:
        return f"{name} started from random weights, but {line['why']}"
    return (
        f"{name} started from random weights, and the first publication replaced all of its "
        f"{counted(line['tensors'], 'tensor')}"
    )


def _masks(line: Row) -> str:
    if line["holds"] is None:
        return f"masks of `{line['loss']}` were not compared bit for bit: {line['why']}"
    where = f"in the fields of {counted(line['masked'], 'token')} that the mask leaves out"
    if not line["holds"]:
        return f"does not hold: NaN {where} changes {', '.join(line['changed'])}"
    return (
        f"NaN {where} changes no bit of loss `{line['loss']}` and its reports "
        f"({counted(line['sequences'], 'sequence')})"
    )


def _loss(line: Row) -> str:
    if line["holds"] is None:
        return f"`{line['loss']}` was not compared with float64: {line['why']}"
    apart = abs(line["value"] - line["value_float64"])
    said = (
        f"`{line['loss']}` as {line['kernel']} and as its expression in float64: values differ by "
        f"{apart:.1e}, gradients by {line['gradient_apart']:.1e} of their norm "
        f"({counted(line['tokens'], 'token')} of {counted(line['sequences'], 'sequence')})"
    )
    return said if line["holds"] else f"does not hold: {said}"


def _publications(line: Row) -> str:
    count = counted(line["syncs"], "publication")
    found = f"{line['proved']} of {count} arrived bit for bit ({line['tensors']} tensors)"
    placeless = line["unproved_tensors"]
    return f"{found}; not compared: {', '.join(placeless)}" if placeless else found
