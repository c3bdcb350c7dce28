"""Checks of what a caller gives to the services of a Session, before any of them is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.errors import expect
from forgedsl.python.pages import PipelineError
from forgedsl.schema.builtins import ROLLOUT_FIELDS, RUN_FIELDS, TRAINER_FIELDS
from forgedsl.services.base import SAMPLING

if TYPE_CHECKING:
    from forgedsl.lower.job import Loss as JobLoss
    from forgedsl_runtime.data_types import Batch, Prompt

LONGEST = 60
"""characters of a wrong argument that a message quotes"""
COUNTED = {"num_tokens", "num_sequences"}
"""counts of every loss"""
GIVEN = frozenset((*TRAINER_FIELDS, *ROLLOUT_FIELDS, *RUN_FIELDS)) - {"behavior"}
"""fields that the trainer computes or that every sample has"""
BOUNDS = {each.name.removeprefix("sampling."): each.type for each in SAMPLING}
"""by setting: the values that the language accepts"""

FORMS = {
    "stop": 'a text or a list of texts, such as ["</answer>"]',
    "top_k": "a whole number, or None",
    "max_tokens": "a whole number",
    "min_tokens": "a whole number",
}
"""by setting of sampling: what the job accepts, if it is not a number"""


def check_count(name: str, value: Any, least: int) -> int:
    """Return a number of things.

    Raises:
        PipelineError: it is not a whole number of at least `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PipelineError(f"`{name}` must be a whole number of at least {least}, not {value!r}")
    return value


def check_rate(name: str, value: Any) -> float | None:
    """Return a learning rate, or None.

    Raises:
        PipelineError: it is not a finite number of at least 0.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and math.isfinite(value) and value >= 0):
        raise PipelineError(f"`{name}` must be a number of at least 0, not {value!r}")
    return value  # type: ignore[no-any-return]


def check_metrics(step: Any, fields: Mapping[str, Any], last: int | None) -> dict[str, int | float]:
    """Return a row of metrics as numbers of Python; a scalar of NumPy or PyTorch counts as one.

    Raises:
        PipelineError: something else was given, or the step is not after the `last` one.
    """
    check_count("step", step, 0)
    if last is not None and step <= last:
        raise PipelineError(
            f"`step` must be more than {last}, the step that was logged last, not {step}; log all "
            "numbers of a step in one call"
        )
    found = {name: _scalar(value) for name, value in fields.items()}
    for name, value in found.items():
        if not isinstance(value, int | float):
            raise PipelineError(f"metric `{name}` must be a number, not {_short(fields[name])}")
    return found


def _scalar(value: Any) -> Any:
    """The number in a scalar of NumPy or PyTorch; anything else as it is."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def list_prompts(given: Any) -> list[Prompt]:
    """Return the prompts of a call as a list.

    Raises:
        PipelineError: something else than prompts was given.
    """
    from forgedsl_runtime.data_types import Prompt

    prompts = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    for each in prompts:
        if not isinstance(each, Prompt):
            raise PipelineError(
                "`prompts` must be prompts of a dataset, such as `s['NAME'].draw(4)`, not "
                f"{_short(each)}; to ask with a text, use `chat(text)`"
            )
    return prompts


def check_is(value: Any, kind: type, wanted: str) -> Any:
    """Return an argument; raise a PipelineError if it is not of this kind, which `wanted` says."""
    if not isinstance(value, kind):
        raise PipelineError(f"{wanted}, not {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def check_batch(batch: Any) -> Batch:
    """Return the batch of a call.

    Raises:
        PipelineError: something else was given.
    """
    from forgedsl_runtime.data_types import Batch

    wanted = '`batch` must be a batch, such as s.batch(groups, adv="adv")'
    found: Batch = check_is(batch, Batch, wanted)
    return found


def check_loss(loss: Any, losses: Mapping[str, JobLoss]) -> JobLoss:
    """Return a loss of the file, given its name, or that of a LossFunction.

    Raises:
        PipelineError: there is no such loss.
    """
    if isinstance(loss, str):
        if loss in losses:
            return losses[loss]
        known = ", ".join(losses) or "none"
        raise PipelineError(f"the pipeline has no loss `{loss}`; it has {known}")
    if not hasattr(loss, "spec"):
        wanted = "`loss` must be a name of the file, or a LossFunction as compile_loss returns"
        raise PipelineError(f"{wanted}, not {_short(loss)}")
    spec: JobLoss = loss.spec
    return spec


def check_counts(counts: Any) -> dict[str, float]:
    """Return the counts that a loss divides by.

    Raises:
        PipelineError: they are not those of `Trainer.counts`.
    """
    wanted = "`counts` must be what trainer.counts(batches, loss).result() returns"
    check_is(counts, Mapping, wanted)
    found = dict(counts)
    numbers = all(isinstance(value, int | float) for value in found.values())
    if not numbers or not found.keys() >= COUNTED:
        raise PipelineError(f"{wanted}, not {_short(counts)}")
    return found


def check_lengths(batch: Batch, seq_len: int, trainer: str) -> Batch:
    """Return the batch if its samples fit in rows of `seq_len` tokens of this trainer.

    Raises:
        PipelineError: one does not.
    """
    long = [sample for sample in batch.samples if len(sample.token_ids) > seq_len]
    if long:
        worst = max(long, key=lambda sample: len(sample.token_ids))
        total, prompt = len(worst.token_ids), worst.num_prompt
        raise PipelineError(
            f"{len(long)} of {len(batch.samples)} samples do not fit batch.seq_len = {seq_len}: "
            f"the longest has {prompt} tokens of prompt and {total - prompt} of completion, "
            f"{total} together; sample with max_tokens={max(seq_len - prompt, 1)} or less, leave "
            f'these completions out, or load the file with set=["{trainer}.batch.seq_len={total}"]'
        )
    return batch


def check_handle(name: str, handle: Any, kind: type, session: Any) -> None:
    """Raise a PipelineError unless an argument is a handle of this kind and of this Session."""
    what = kind.__name__.lower()
    check_is(handle, kind, f"`{name}` must be a {what} of the Session, such as s['{what}']")
    if handle.session is not session:
        raise PipelineError(f"`{name}` is of another Session: {handle.session.folder}")


def check_values(values: Mapping[str, Any]) -> None:
    """Raise a PipelineError unless the values to be saved can be written as JSON."""
    for name, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            text = f"`{name}` cannot be saved: {error}; save numbers, texts, lists or dictionaries"
            raise PipelineError(text) from error


def check_target(folder: Any) -> Path:
    """Return the absolute path of an export.

    Raises:
        PipelineError: it is no path, or there is a file, or a folder that is not empty.
    """
    if not isinstance(folder, str | PathLike):
        raise PipelineError(f"`folder` must be the path of a folder, not {_short(folder)}")
    target = Path(folder).resolve()
    if target.is_file():
        raise PipelineError(f"{folder} is a file: name a folder for the weights")
    if target.is_dir() and any(target.iterdir()):
        raise PipelineError(f"{folder} is not empty; name a new folder for the weights")
    return target


def check_messages(messages: Any) -> str | list[dict[str, Any]]:
    """Return the messages of a chat, or its text.

    Raises:
        PipelineError: they have another form.
    """
    wanted = '`messages` must be a text, or messages such as [{"role": "user", "content": "Hi"}]'
    check_is(messages, Sequence, wanted)
    if isinstance(messages, str):
        if not messages:
            raise PipelineError("`messages` have no text, and an engine needs some")
        return messages
    for each in messages:
        if not isinstance(each, Mapping) or not {"role", "content"} <= each.keys():
            raise PipelineError(f"{wanted}, not {_short(messages)}")
    if not any(each["content"] for each in messages):
        raise PipelineError("`messages` have no text, and an engine needs some")
    return [dict(each) for each in messages]


def check_fields(batch: Batch, loss: JobLoss) -> None:
    """Raise a PipelineError if the samples of a batch lack a field that the loss reads, or have
    it for tokens in place of completions."""
    for field in loss.fields:
        name = field.name
        if name in GIVEN:
            continue
        axes = f"[{', '.join(field.axes)}]"
        for sample in batch.samples:
            if name in sample.token_fields and "T" not in field.axes:
                raise PipelineError(
                    f"loss `{loss.name}` declares `{name}` as {axes}: one number for each "
                    "completion, and the batch has one for each token"
                )
            if name in sample.sequence_fields and "T" in field.axes:
                raise PipelineError(
                    f"loss `{loss.name}` declares `{name}` as {axes}: one number for each token, "
                    "and the batch has one for each completion"
                )
            if name not in sample.token_fields and name not in sample.sequence_fields:
                raise PipelineError(
                    f"the batch has no `{name}` {axes}, which loss `{loss.name}` reads: set it on "
                    f'each group, and name it in s.batch(groups, {name}="{name}")'
                )


def numbers(function: str, name: str, value: Any) -> Any:
    """Return the values of an argument of an advantage or filter as a list.

    Raises:
        PipelineError: they are no numbers.
    """
    found = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(found, Sequence) and not isinstance(found, str | bytes):
        rows = [list(each) if isinstance(each, tuple) else each for each in found]
        parts = [part for row in rows for part in (row if isinstance(row, list) else [row])]
        alike = len({isinstance(row, list) for row in rows}) <= 1
        if alike and all(isinstance(part, int | float) for part in parts):
            return rows
    raise PipelineError(
        f"`{name}` of {function} must be a list of numbers, one for each completion of a group "
        f"(or lists of numbers, one for each token), not {_short(value)}"
    )


def change_sampling(base: Any, given: Mapping[str, Any]) -> Any:
    """Return sampling settings of a job with some of them changed.

    Raises:
        PipelineError: there is no such setting, or it does not accept the value.
    """
    from pydantic import ValidationError

    unknown = [name for name in given if name not in type(base).model_fields]
    if unknown:
        known = ", ".join(type(base).model_fields)
        raise PipelineError(f"sampling has no `{unknown[0]}`; it has {known}")
    if isinstance(given.get("stop"), str):
        given = {**given, "stop": (given["stop"],)}
    try:
        changed = type(base).model_validate({**base.model_dump(), **given})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        wanted = FORMS.get(name, "a number")
        text = f"sampling: `{name}` must be {wanted}, not {_short(given[name])}"
        raise PipelineError(text) from error
    for name in given:
        value = getattr(changed, name)
        if name in BOUNDS and (bound := BOUNDS[name].refuses(value)):
            raise PipelineError(f"sampling: `{name}` must be {bound}, not {value!r}")
    return changed


def as_override(given: tuple[str, object]) -> str:
    """Return a keyword as an override: `group=4` -> "group=4", `shuffle=True` -> "shuffle=true"."""
    name, value = given
    expect(value, bool | int | float | str, f"{name}=... takes one value")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{name}={text}"
