"""Checks of what a caller gives to the services of a Session, before any of them is asked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.python.pages import PipelineError
from forgedsl.services.base import SAMPLING

if TYPE_CHECKING:
    from forgedsl_runtime.data_types import Prompt

BOUNDS = {each.name.removeprefix("sampling."): each.type for each in SAMPLING}
"""by setting: the values that the language accepts"""


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


def check_metrics(step: Any, fields: Mapping[str, Any]) -> None:
    """Raise a PipelineError if a row of metrics has anything but numbers."""
    check_count("step", step, 0)
    for name, value in fields.items():
        if not isinstance(value, int | float):
            raise PipelineError(f"metric `{name}` must be a number, not {value!r}")


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
                f"{repr(each)[:60]}; to ask with a text, use `chat(text)`"
            )
    return prompts


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
    try:
        changed = type(base).model_validate({**base.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        raise PipelineError(f"sampling: {first['loc'][0]}: {first['msg']}") from error
    for name in given:
        value = getattr(changed, name)
        if name in BOUNDS and (bound := BOUNDS[name].refuses(value)):
            raise PipelineError(f"sampling: `{name}` must be {bound}, not {value!r}")
    return changed
