"""job.Reward -> a callable that a worker process applies to rollouts.

std      function of forgedsl.runtime.rewards, `args` its settings
program  function of the job's generated module, `f(rollout, **args)`
python   function of the user's file, `f(prompt, response, target)` or `f(rollout, target)`,
         synchronous or asynchronous; the file must be the one the job was built with
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.lower import job
from forgedsl.runtime.items import Rollout
from forgedsl.runtime.models import resolve_path
from forgedsl.runtime.rewards import text
from forgedsl.runtime.rewards.math_equal import math_equal

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
        return self._awaited(value) if inspect.isawaitable(value) else self._checked(value)

    async def _awaited(self, value: Awaitable[Any]) -> float:
        return self._checked(await value)

    def _checked(self, value: Any) -> float:
        if not hasattr(value, "__float__"):
            raise ValueError(f"{self.name} returned {_shown(value)}, not a number")
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{self.name} returned {number}, which is not finite")
        return number


def load_reward(spec: job.Reward, program: ModuleType, job_dir: Path) -> RewardFunction:
    """The callable of a reward.

    Raises:
        LaunchError: a Python reward is missing, is not the one of the job, or fails on import.
    """
    if spec.kind == "std":
        function = partial(STANDARD[spec.function], **spec.args)
    elif spec.kind == "program":
        body = partial(getattr(program, spec.function), **spec.args)
        function = partial(_without_target, body)
    else:
        user = partial(_python_function(spec, job_dir), **spec.args)
        function = user if spec.passes_rollout else partial(_spread, user)
    return RewardFunction(spec.function, function)


def _without_target(body: Callable[..., Any], rollout: Rollout, target: Any) -> Any:
    return body(rollout)


def _spread(user: Callable[..., Any], rollout: Rollout, target: Any) -> Any:
    return user(rollout.prompt.text, rollout.response, target)


def _python_function(spec: job.Reward, job_dir: Path) -> Callable[..., Any]:
    assert spec.path is not None
    path = resolve_path(spec.path, job_dir)
    if not path.is_file():
        raise LaunchError(f"reward {spec.function}: the file {spec.path} is missing from the job")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != spec.sha256:
        raise LaunchError(
            f"reward {spec.function}: {spec.path} is not the file the job was built with "
            f"(sha256 {digest[:12]}, expected {(spec.sha256 or 'none')[:12]}); build the job again"
        )
    module = _import_file(path, f"forge_reward_{digest[:16]}", spec)
    try:
        function: Callable[..., Any] = getattr(module, spec.function)
        return function
    except AttributeError:
        raise LaunchError(f"reward {spec.function}: {spec.path} defines no such function") from None


def _import_file(path: Path, name: str, spec: job.Reward) -> ModuleType:
    """Import once per process; two rewards of one file share its module and its state."""
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise LaunchError(
            f"reward {spec.function}: importing {spec.path} failed: {type(error).__name__}: {error}"
        ) from error
    return module


def _shown(value: Any) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown[:60]}{'...' if len(shown) > 60 else ''}"
