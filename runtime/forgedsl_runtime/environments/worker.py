"""Code of an environment process: one object per trajectory, all on one event loop.

    process.py --(number, Request)--> serve --(number, Reply, last)--> process.py

Synchronous methods run on threads. A method that exceeds its time limit is left running; the next
method of its object waits for it. If too many are left running, the process ends.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from numbers import Real
from pathlib import Path
from random import Random
from typing import Any

from forgedsl.agent import Agent, Model
from forgedsl.environment import Environment, Start, Step, Task, Turn, tools_of
from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.environments.program import POOL, ProgramAgent, ProgramFailed, load_program
from forgedsl_runtime.modules import load_file
from forgedsl_runtime.tracebacks import described, line_of
from forgedsl_runtime.worker_process import loaded, receive_work, send, serve_together

THREADS = 1024
"""number of concurrent synchronous calls; a call has a thread only while it runs"""
START_SECONDS = 60.0
"""time limit for a server to list its tools"""
CLEANING = 2.0
"""seconds that an agent has to end after it was cancelled"""
LEFT_BEHIND = 64
"""number of closed trajectories with a hanging call; with more, the process is replaced"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEnvironment:
    """The environment that a process serves."""

    name: str
    environment: spec.Environment
    job_dir: str
    mark: str = ""
    """value of `program.POOL` in the environment of its agent programs"""
    confined: bool = False
    """True if the process must have no effects outside of itself, and print nothing"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request about the object of a trajectory. An environment has reset (`task`, `seed`), step
    (`turn`) and close; an agent has run (`task`, `seed`, `model`) and close. `tools` returns the
    schemas of the environment's tools."""

    key: str
    op: str
    seconds: float
    task: Task | None = None
    seed: int = 0
    turn: Turn | None = None
    model: Model | None = None


@dataclass(kw_only=True)
class Reply:
    """Result: a `Start`, a `Step`, rewards of an agent or schemas; or why there is none: late,
    failed, process ended."""

    value: Any = None
    error: str = ""
    late: bool = False
    ended: bool = False
    collateral: bool = False
    """the process ended because of another trajectory"""


def main(number: int) -> None:
    """Serve over the inherited socket until it is closed."""
    served: ServedEnvironment
    stream, served = receive_work(number)
    os.environ[POOL] = served.mark
    try:
        if served.confined:
            from forgedsl_runtime.probes.confined import confine

            confine()
        made = load(served)
    except LaunchError as error:
        send(stream, str(error))
        return
    loaded(stream)
    asyncio.run(_Trajectories(served, made).serve(stream))


def load(served: ServedEnvironment) -> Callable[[], Environment | Agent]:
    """Return a function that makes the object of a trajectory. As a check, make one object and read
    its tools.

    Raises:
        LaunchError: the class is missing, is no environment, or cannot be made.
    """
    spec_ = served.environment
    name = f"environment {served.name}"
    if spec_.program is not None:
        try:
            program = load_program(spec_.program, spec_.scripts, Path(served.job_dir).absolute())
        except LaunchError as error:
            raise LaunchError(f"{name}: {error}") from error
        return lambda: ProgramAgent(served.name, program)
    try:
        cls = _class(spec_, Path(served.job_dir))
    except LaunchError as error:
        raise LaunchError(f"{name}: {error}") from error
    try:
        made = cls(**spec_.args)
        if isinstance(made, Environment):
            tools_of(type(made))
            # tools of a server: check them before models load
            if type(made).offered is not Environment.offered:
                asyncio.run(_tools(made, START_SECONDS))
    except Exception as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in spec_.args.items())
        raise LaunchError(
            f"{name}: {spec_.type_name}({given}) failed: {described(error)}"
        ) from None
    if isinstance(made, Environment) and (never := _never_pays(made)):
        raise LaunchError(f"{name}: {never}")
    return lambda: cls(**spec_.args)


def _class(spec_: spec.Environment, folder: Path) -> type[Environment | Agent]:
    """Return the class of an environment or agent.

    Raises:
        LaunchError: its file cannot be used, or has no such class.
    """
    module = None
    if spec_.path:
        module = load_file(spec_.path, spec_.sha256, folder, spec_.modules)
    if spec_.gymnasium:
        try:
            from forgedsl.gymnasium import Gymnasium
        except ImportError as error:
            raise LaunchError(str(error)) from error
        return Gymnasium
    cls = getattr(module, spec_.type_name, None)
    base = Agent if spec_.agent else Environment
    if not (isinstance(cls, type) and issubclass(cls, base)):
        what = "agent" if spec_.agent else "environment"
        raise LaunchError(f"{spec_.path} has no {what} class {spec_.type_name}")
    return cls


def _never_pays(made: Environment) -> str:
    """Return an error text if the class has reward parts but no method that could give them (the
    default `step` gives none); else ""."""
    cls = type(made)
    own = cls.step is not Environment.step or cls.call_tools is not Environment.call_tools
    if own or not made.parts:
        return ""
    methods = [name for name in vars(cls) if not hasattr(Environment, name)]
    near = get_close_matches("step", methods, n=1)
    parts = ", ".join(f"`{part}`" for part in made.parts)
    return (
        f"{cls.__name__} has the reward parts {parts}, but no `step`, so no turn gives them; "
        + (f"rename `{near[0]}` to `step`" if near else "write `step`, or remove `parts`")
    )


async def _tools(made: Environment, seconds: float) -> tuple[Any, ...]:
    """Return the schemas of the tools that an object offers."""
    try:
        async with asyncio.timeout(seconds):
            return tuple((await made.offered()).values())
    except TimeoutError:
        raise TimeoutError(f"it did not list its tools within {seconds:g} s") from None
    finally:
        if inspect.isawaitable(closing := made.close()):
            await closing


class Gone(Exception):
    """The trajectory's object was in an earlier process, which has ended."""


class _Instance:
    """The object of one trajectory. Its synchronous methods run one after the other."""

    def __init__(
        self, environment: Environment | Agent, pool: ThreadPoolExecutor, seconds: float
    ) -> None:
        self.environment: Any = environment
        self._pool, self._seconds = pool, seconds
        self._last: asyncio.Future[Any] | None = None
        if isinstance(environment, Environment):
            environment.run = self._tool  # type: ignore[method-assign]

    @property
    def stuck(self) -> bool:
        return self._last is not None and not self._last.done()

    async def call(self, method: Callable[..., Any], *args: Any, **given: Any) -> Any:
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])
        if inspect.iscoroutinefunction(method):
            return await method(*args, **given)
        loop = asyncio.get_running_loop()
        self._last = loop.run_in_executor(self._pool, lambda: method(*args, **given))
        self._last.add_done_callback(_seen)
        value = await asyncio.shield(self._last)
        return await value if inspect.isawaitable(value) else value

    async def work(self, task: Task, model: Model) -> Any:
        """Run an agent to its end."""
        self._last = asyncio.ensure_future(self.environment.run(task, model))
        return await self._last

    async def stop(self) -> None:
        """Cancel an agent that is still at work, and wait until it has cleaned up."""
        if self.stuck and isinstance(self.environment, Agent):
            assert self._last is not None
            self._last.cancel()
            await asyncio.wait([self._last], timeout=CLEANING)

    async def _tool(self, method: Callable[..., Any], **given: Any) -> Any:
        async with asyncio.timeout(self._seconds):
            return await self.call(method, **given)


def _seen(done: asyncio.Future[Any]) -> None:
    """Ignore the error of a call that was left running."""
    if not done.cancelled():
        done.exception()


class _Trajectories:
    """All trajectories of a process."""

    def __init__(self, served: ServedEnvironment, make: Callable[[], Environment | Agent]) -> None:
        self._make = make
        self._served = served
        self._instances: dict[str, _Instance] = {}
        self._hanging: list[_Instance] = []
        self._pool = ThreadPoolExecutor(THREADS, "environment")

    async def serve(self, stream: socket.socket) -> None:
        """Serve requests concurrently; the client keeps the order within a trajectory."""
        # By default asyncio.to_thread has only one thread per core, plus four.
        asyncio.get_running_loop().set_default_executor(self._pool)
        await serve_together(stream, self._answer)
        os._exit(0)  # hanging threads would prevent a normal exit

    async def _answer(self, request: Request) -> tuple[Reply, bool]:
        reply = await self._reply(request)
        self._hanging = [instance for instance in self._hanging if instance.stuck]
        return reply, len(self._hanging) > LEFT_BEHIND

    async def _reply(self, request: Request) -> Reply:
        clock = asyncio.timeout(request.seconds)
        try:
            async with clock:
                return Reply(value=await self._do(request))
        except BaseException as error:
            if clock.expired():
                return Reply(late=True, error=f"no answer within {request.seconds:g} s")
            if isinstance(error, ProgramFailed):
                return Reply(error=str(error))
            place = line_of(error, Path(self._served.environment.path).name)
            return Reply(error=described(error) + place, collateral=isinstance(error, Gone))

    async def _do(self, request: Request) -> Any:
        if request.op == "tools":
            made = self._make()
            return await _tools(made, request.seconds) if isinstance(made, Environment) else ()
        if request.op in ("reset", "run"):
            instance = _Instance(self._make(), self._pool, self._served.environment.tool_timeout)
            self._instances[request.key] = instance
        if request.op == "run":
            assert request.task is not None
            assert request.model is not None
            instance.environment.rng = Random(request.seed)
            return self._rewards(await instance.work(request.task, request.model))
        if request.op == "reset":
            found = await instance.call(
                instance.environment.reset, request.task, Random(request.seed)
            )
            return _checked(found, Start, "reset")
        if request.op == "close":
            return await self._close(self._instances.pop(request.key, None))
        if request.key not in self._instances:
            raise Gone("its process was restarted, so the trajectory is lost")
        instance = self._instances[request.key]
        step = _checked(await instance.call(instance.environment.step, request.turn), Step, "step")
        unknown = set(step.rewards) - set(self._served.environment.parts)
        if unknown:
            raise ValueError(
                f"step returned rewards {sorted(unknown)}, which `parts` does not list"
            )
        return step

    def _rewards(self, value: Any) -> dict[str, float]:
        """Check what an agent returned; return it as rewards by part.

        Raises:
            TypeError, ValueError: it cannot be used.
        """
        parts = self._served.environment.parts
        if value is None:
            return {}
        if isinstance(value, Real):
            if len(parts) != 1:
                raise ValueError(
                    f"run returned {value!r:.60}, but the agent has {len(parts)} reward parts: "
                    "return a dict of them"
                )
            value = {parts[0]: value}
        if not isinstance(value, Mapping):
            raise TypeError(f"run returned {type(value).__name__}, expected a number or a dict")
        if unknown := set(value) - set(parts):
            raise ValueError(f"run returned rewards {sorted(unknown)}, which `parts` does not list")
        for name, part in value.items():
            _check_part("run", name, part)
        return {name: float(part) for name, part in value.items()}

    async def _close(self, instance: _Instance | None) -> None:
        if instance is not None:
            await instance.stop()
        if instance is not None and instance.stuck:
            self._hanging.append(instance)
        elif instance is not None:  # None: its object was in an earlier process
            await instance.call(instance.environment.close)


def _checked(value: Any, cls: type[Any], method: str) -> Any:
    """Check the return value of a method and return it.

    Raises:
        TypeError: it cannot be used.
    """
    if not isinstance(value, cls):
        form = "Step(observation, rewards={...}, done=...)" if cls is Step else "Start(observation)"
        raise TypeError(f"{method} returned {type(value).__name__}, expected {form}")
    if problem := _unusable(value.observation):
        raise TypeError(f"{method} returned an observation that is {problem}")
    for name, part in value.rewards.items() if cls is Step else ():
        _check_part(method, name, part)
    return value


def _check_part(method: str, name: str, part: Any) -> None:
    if not isinstance(part, Real) or not isfinite(part):
        raise TypeError(
            f"{method} returned {part!r:.60} for `{name}`, which is not a finite number"
        )


def _unusable(said: Any) -> str:
    """Return why an observation cannot be shown to the policy; "" if it can."""
    if isinstance(said, str):
        return ""
    if not isinstance(said, list | tuple):
        return f"of type {type(said).__name__}, neither text nor a list of messages"
    bad = (m for m in said if not (isinstance(m, Mapping) and {"role", "content"} <= m.keys()))
    return next((f"not a list of messages with `role` and `content`: {m!r:.60}" for m in bad), "")
