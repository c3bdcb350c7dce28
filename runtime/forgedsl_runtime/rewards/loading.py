"""job.Reward -> a callable that a worker process applies to rollouts.

std      function of forgedsl_runtime.rewards, `args` its settings
program  function of the job's generated module, `f(rollout, **args)`
python   function or callable object of the user's file, or an object of a class made with `args`,
         synchronous or asynchronous; `inputs` and `positional` say what each parameter is given;
         the file must be the one the job was built with
endpoint a judge behind HTTP
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.lower import job
from forgedsl_runtime.data_types import Rollout
from forgedsl_runtime.modules import check_files, load_file
from forgedsl_runtime.rewards import text
from forgedsl_runtime.rewards.endpoint import Endpoint
from forgedsl_runtime.rewards.inputs import source_of
from forgedsl_runtime.rewards.math_equal import math_equal
from forgedsl_runtime.tracebacks import described

STANDARD: dict[str, Callable[..., float]] = {
    "math_equal": math_equal,
    "think_tags": text.think_tags,
    "exact": text.exact,
    "contains": text.contains,
    "format_regex": text.format_regex,
    "overlong": text.overlong,
}


class RewardFunction:
    """`reward(rollout, target)`: a finite float, or a coroutine of one if the function is async.

    Raises:
        ValueError: the function returned something that is not a finite number.
    """

    def __init__(self, name: str, function: Callable[[Rollout, Any], Any]) -> None:
        self.name = name
        self.function = function

    def __call__(self, rollout: Rollout, target: Any) -> Any:
        value = self.function(rollout, target)
        if type(value) is float:
            return self._as_number(value)
        return self._await_number(value) if inspect.isawaitable(value) else self._as_number(value)

    async def _await_number(self, value: Awaitable[Any]) -> float:
        return self._as_number(await value)

    def _as_number(self, value: Any) -> float:
        if value is None:
            raise ValueError(
                f"{self.name} returned None, expected a number: is there a path without `return`?"
            )
        if not hasattr(value, "__float__"):
            said = f"{self.name} returned {_shortened(value)}, expected a number"
            if inspect.iscoroutine(value):
                value.close()
                said += ": is an `await` missing?"
            raise ValueError(said)
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{self.name} returned {number}, which is not finite")
        return number


def load_reward(spec: job.Reward, program: ModuleType, job_dir: Path) -> RewardFunction:
    """Return the callable of a reward.

    Raises:
        LaunchError: a Python reward is missing, has another content than the job says, or fails on
            import.
    """
    if spec.kind == "std":
        function: Callable[..., Any] = partial(_standard(spec.function), **spec.args)
    elif spec.kind == "endpoint":
        function = Endpoint(spec)
    elif spec.kind == "program":
        body = partial(getattr(program, spec.function), **spec.args)
        function = partial(_without_target, body)
    else:
        user = _python_function(spec, job_dir)
        if spec.makes == "class":
            user = _make_object(user, spec)
        elif spec.args:
            user = partial(user, **spec.args)
        function = partial(_call_with_inputs, user, spec)
    return RewardFunction(spec.function, function)


def _standard(name: str) -> Callable[..., float]:
    if name != "reasoning_gym":
        return STANDARD[name]
    try:
        from forgedsl.reasoning_gym import score
    except ImportError as error:
        raise LaunchError(str(error)) from error

    def reasoning_gym(rollout: Rollout, target: Any, *, whole: bool) -> float:
        return score(source_of("column entry", rollout, target), rollout.response, whole=whole)

    return reasoning_gym


def _without_target(body: Callable[..., Any], rollout: Rollout, target: Any) -> Any:
    return body(rollout)


def _make_object(user: Callable[..., Any], spec: job.Reward) -> Callable[..., Any]:
    """Make the object of a class with its arguments."""
    try:
        made: Callable[..., Any] = user(**spec.args)
    except (Exception, SystemExit) as error:
        given = ", ".join(f"{name} = {value!r}" for name, value in spec.args.items())
        raise LaunchError(f"{spec.function}({given}) failed: {described(error)}") from error
    return made


def _call_with_inputs(
    user: Callable[..., Any], spec: job.Reward, rollout: Rollout, target: Any
) -> Any:
    """Call the function with the input of each parameter."""
    if spec.lists:
        return _call_with_lists(user, spec, rollout, target)
    places = [source_of(source, rollout, target) for source in spec.positional]
    names = {
        name: source_of(source, rollout, target)
        for name, source in spec.inputs.items()
        if not source.startswith("column? ") or source[8:] in rollout.prompt.columns
    }
    return user(*places, **names)


def _call_with_lists(
    user: Callable[..., Any], spec: job.Reward, rollout: Rollout, target: Any
) -> Any:
    """Call as TRL does: with lists of one element, and with messages if the prompt is a chat."""
    prompt = rollout.prompt
    chat = prompt.messages is not None
    answer = [{"role": "assistant", "content": rollout.response}] if chat else rollout.response
    known = {
        "prompt": prompt.messages if chat else prompt.text,
        "response": answer,
        "token_ids": rollout.token_ids,
    }
    given: dict[str, Any] = {}
    for name, source in spec.inputs.items():
        if name == "**":
            given = {**prompt.columns, **given}
        elif not source.startswith("column? ") or source[8:] in prompt.columns:
            given[name] = known[source] if source in known else source_of(source, rollout, target)
    values = user(**{name: [value] for name, value in given.items()})
    if not isinstance(values, list | tuple) or len(values) != 1:
        raise ValueError(
            f"{spec.function} takes `completions`: it must return a list with one number for each, "
            f"not {_shortened(values)}"
        )
    return values[0]


def _python_function(spec: job.Reward, job_dir: Path) -> Callable[..., Any]:
    assert spec.path is not None
    check_files(spec.files, job_dir)
    module = load_file(spec.path, spec.sha256 or "", job_dir, spec.modules)
    function: Callable[..., Any] | None = getattr(module, spec.function, None)
    if not callable(function):
        what = (
            "no function of this name"
            if function is None
            else f"`{spec.function}`, which is not callable"
        )
        raise LaunchError(f"{spec.path} has {what}")
    return function


def _shortened(value: Any) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown[:60]}{'...' if len(shown) > 60 else ''}"
