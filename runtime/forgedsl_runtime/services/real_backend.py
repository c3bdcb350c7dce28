"""The services of a real run: trainers, engines and rewards on their meshes.

Processes start first, and import their modules. Meanwhile this process calls user code once, finds
the models and imports the classes of actors. Functions import what needs torch or transformers.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from forgedsl.errors import LaunchError
from forgedsl_runtime import meshes, sandbox
from forgedsl_runtime.hosts.registry import start_hosts
from forgedsl_runtime.meshes import Fleet
from forgedsl_runtime.models import resolve_path
from forgedsl_runtime.service_backend import Run, check_supported
from forgedsl_runtime.upstream.monarch import Mesh

if TYPE_CHECKING:
    from forgedsl_runtime.services.build import Data
    from forgedsl_runtime.services.endpoints import MonarchEndpoints

R = TypeVar("R")


async def _call_user_code(this: Run) -> None:
    """Call user code once, if this run does, and emit what it says.

    Raises:
        UserCodeError: some of it would fail for every row.
    """
    if this.trial is not None:
        for kind, text in await _in_thread(partial(this.trial, this.job_dir)):
            this.events.emit(kind, text=text)


async def _in_thread(call: Callable[[], R]) -> R:
    """Return the result of `call`, made in a thread that nobody waits for after a cancellation. At
    the end of the event loop, threads of `asyncio.to_thread` would be waited for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def resolve(settle: Callable[[], None]) -> None:
        if not future.done():  # the wait was not cancelled
            settle()

    def work() -> None:
        try:
            settle = partial(future.set_result, call())
        except BaseException as error:
            settle = partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(resolve, settle)

    threading.Thread(target=work, name="user code", daemon=True).start()
    return await future


async def _tell_sandbox(this: Run) -> None:
    """Emit a note on how well code run by rewards is isolated on this host.

    Raises:
        LaunchError: isolation is missing, or weaker than demanded.
    """
    paths = {resolve_path(r.path, this.job_dir) for r in this.job.rewards.values() if r.path}
    if any(sandbox.MARK in path.read_text("utf-8") for path in paths if path.is_file()):
        try:
            text = await asyncio.to_thread(sandbox.description)
        except sandbox.SandboxError as error:
            raise LaunchError(str(error)) from error
        this.events.emit("note", text=text)


class RealBackend:
    """Backend of a real run; implements `service_backend.ServiceBackend`."""

    loads_models = True

    def spawn(self, this: Run) -> Fleet:
        check_supported(this.job)
        environment = this.scratch.environment()
        hosts = start_hosts(this.job, this.scratch.temp, this.run_dir / "logs")
        try:
            return meshes.begin(this.job, this.run_dir, environment, hosts)
        except BaseException:
            hosts.stop()
            raise

    async def prepare(self, this: Run, fleet: Fleet) -> Data:
        """Start the actors, set up all meshes, report every process, and open the data
        meanwhile."""
        await _call_user_code(this)
        from forgedsl_runtime.disk_space import check_room
        from forgedsl_runtime.services.build import open_data

        check_room(this.job, this.job_dir, this.scratch.temp, this.run_dir)
        folders = meshes.find_models(this.job, this.run_dir, this.job_dir)
        meshes.run_actors(fleet, this.job, this.job_dir, folders)

        def warn(service: str, text: str) -> None:
            this.events.emit("warning", service=service, text=text)

        async with asyncio.TaskGroup() as tasks:
            data = tasks.create_task(open_data(this.job, this.job_dir, this.run_dir, this.events))
            tasks.create_task(_tell_sandbox(this))
            proved = tasks.create_task(
                meshes.setup(fleet, this.run_dir, this.scratch.key, this.resume, this.tell, warn)
            )
        this.frozen |= {line["service"]: line for line in proved.result()}
        return data.result()

    async def connect(self, this: Run, fleet: Fleet, data: Data) -> MonarchEndpoints:
        from forgedsl_runtime.services.build import build_endpoints

        return await build_endpoints(
            this.job, fleet, this.run_dir, data, this.events, this.record_batches
        )

    async def restart(self, this: Run, dead: Mesh) -> Mesh:
        return await meshes.restart(dead, this.scratch.key, this.tell)
