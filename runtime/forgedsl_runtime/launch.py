"""Job -> a running set of meshes -> an exit code.

    run(job, run_dir): spawn meshes, set up, first weight sync, controller, export, stop

Exit codes: 0 done, 4 the environment cannot satisfy the job, 5 failed, 6 stopped by a guard, 130
interrupted, 75 interrupted by SIGTERM with a checkpoint to `--resume` from. An interrupted run has
written a checkpoint, unless it was still starting or was stopped at once by further signals. In
every case all processes are stopped, and the last event is `run.end` with the outcome. After a
failed service, `schedule.restarts` starts the run again from the last checkpoint, in the same
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from forgedsl.diagnostics import counted
from forgedsl.errors import (
    GuardError,
    LaunchError,
    RunError,
    StartError,
    UserCodeError,
    cannot_write,
)
from forgedsl.lower import job as spec
from forgedsl.notebook import quiet_widgets
from forgedsl.runs.card import write_card
from forgedsl.runs.checkpoints import REPLAY, drop_partial, last_step
from forgedsl_runtime.events import EventLog, Reader
from forgedsl_runtime.interrupt import EXIT_INTERRUPTED, Interrupt
from forgedsl_runtime.run_folder import open_run_folder
from forgedsl_runtime.service_backend import Run, ServiceBackend, Trial
from forgedsl_runtime.temporary_files import Scratch, remove_dead
from forgedsl_runtime.tracebacks import described
from forgedsl_runtime.usage import Usage

BEFORE_FIRST = "stopped before its first step"
EXIT_OK, EXIT_LAUNCH, EXIT_FAILED, EXIT_GUARD = 0, 4, 5, 6


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Result of a run. `message` is the reason, `origin` the declaration that it concerns."""

    code: int
    status: str
    message: str = ""
    origin: str = ""
    remedy: str = ""
    service: str = ""
    """the service that failed"""
    at_start: bool = False
    """True if a process of the service died while it was starting"""


def run(
    job: spec.Job,
    run_dir: Path,
    *,
    job_dir: Path | None = None,
    resume: bool = False,
    readers: Sequence[Reader] | None = None,
    record_batches: int = 1,
    rehearsal: Any = None,
    changed_data: bool = False,
    trial: Trial | None = None,
) -> int:
    """Execute `job`, writing everything under `run_dir`; files of the job are in `job_dir`.
    Without `readers`, the folder gets the same files as with `forgec run`: job.json, metrics,
    report. The batches of the first `record_batches` steps are kept for `forgec replay`. With a
    `rehearsal` (forgedsl_runtime.stub) no model is loaded. `changed_data`: a resumed run reads
    other data than before. `trial` is called once, while processes start. Returns the exit code.
    Other errors than these are reported in the event `run.end`, not raised.

    Raises:
        LaunchError: the folder holds a run with a checkpoint, and `resume` is False.
        UserCodeError: raised by `trial`; the processes have been ended.
    """
    if not resume and last_step(run_dir):
        raise LaunchError(f"{run_dir} holds a run; name another folder, or give resume=True")
    run_dir.mkdir(parents=True, exist_ok=True)
    drop_partial(run_dir)
    spec.use_extensions(job.model_dump(include={"extensions"}), job_dir or run_dir)
    _silence_libraries()
    _remove_dead()
    there = job_dir or run_dir
    log, backend = _open_log_and_backend(run_dir, rehearsal)
    with _readers(job, run_dir, there, readers) as open_readers, log as events:
        for reader in open_readers:
            events.subscribe(reader)

        def session(left: int, resume: bool) -> Outcome | None:
            last = (last_step(run_dir) or None) if resume else None
            with _scratch() as (scratch, clean_up):
                this = Run(
                    job=job, run_dir=run_dir.resolve(), job_dir=there.resolve(), resume=last,
                    events=events, record_batches=record_batches, backend=backend, scratch=scratch,
                    clean_up=clean_up, changed_data=changed_data, trial=None if resume else trial,
                )  # fmt: skip
                return _run(this, left, has_readers=bool(readers))

        return _sessions(session, job.schedule.restarts, run_dir, resume)


def _readers(
    job: spec.Job, run_dir: Path, job_dir: Path, given: Sequence[Reader] | None
) -> contextlib.AbstractContextManager[Sequence[Reader]]:
    """Yield the given readers, or those of `forgec run`."""
    return (
        open_run_folder(job, run_dir, job_dir) if given is None else contextlib.nullcontext(given)
    )


def _silence_libraries() -> None:
    # Otherwise the tokenizers library warns when a process that has tokenized is forked.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    quiet_widgets()


def _remove_dead() -> None:
    for key in remove_dead():
        print(
            f"note: removed files and processes left behind by run {key}, which was killed",
            file=sys.stderr,
        )


@contextlib.contextmanager
def _scratch() -> Iterator[tuple[Scratch, Callable[[], None]]]:
    """Yield the temporary files of a session and a function that kills its processes and removes
    them."""
    scratch = Scratch()
    others = frozenset(child.pid for child in psutil.Process().children())

    def clean_up() -> None:
        kill_children(others)
        scratch.close()

    try:
        yield scratch, clean_up
    finally:  # also if Ctrl-C comes before the event loop handles it
        clean_up()


def _sessions(
    session: Callable[[int, bool], Outcome | None], restarts: int, run_dir: Path, resume: bool
) -> int:
    """Run sessions until one ends with an outcome; return its exit code. Later sessions resume."""
    while (outcome := session(restarts, resume)) is None:
        restarts, resume = restarts - 1, True
        drop_partial(run_dir)
    return outcome.code


def _run(this: Run, left: int, *, has_readers: bool) -> Outcome | None:
    """Run from `run.start` to `run.end`. `left` is the number of restarts that remain; return None
    if a service failed and the run starts again. If it `has_readers`, they show the event
    `run.end`; otherwise the reason of a failure is printed to stderr."""
    _announce(this)
    start = time.monotonic()
    outcome = _outcome(this)
    seconds = round(time.monotonic() - start, 3)
    step = last_step(this.run_dir)
    again = step or (outcome.at_start and this.resume is None)
    if left and outcome.service in this.job.services and again:
        where = f"its checkpoint of step {step}" if step else "its beginning"
        text = f"{outcome.message}; the run restarts from {where}"
        this.events.emit("restarted", service=outcome.service, step=step)
        this.events.emit("notice", text=f"{text} ({counted(left - 1, 'restart')} left)")
        return None
    try:
        told = {key: value for key, value in asdict(outcome).items() if key != "at_start"}
        this.events.emit("run.end", **told, seconds=seconds)
    except RunError as error:
        outcome = _outcome_of(error)
    # If readers show events, the summary prints the outcome from the event `run.end`.
    if outcome.message and not (has_readers and this.events.whole):
        words = (outcome.message, outcome.origin, outcome.remedy)
        print("\n  ".join(filter(None, words)), file=sys.stderr)
    return outcome


def _open_log_and_backend(run_dir: Path, rehearsal: Any) -> tuple[EventLog, ServiceBackend]:
    """Return the event log and the backend of the services."""
    path = run_dir / "events.jsonl"
    if rehearsal is None:
        from forgedsl_runtime.services.real_backend import RealBackend

        return EventLog(path), RealBackend()
    from forgedsl_runtime.stub.backend import RehearsalBackend
    from forgedsl_runtime.stub.rehearsal import RehearsalLog

    rehearsal.write(run_dir)
    return RehearsalLog(path), RehearsalBackend(rehearsal)


def _announce(this: Run) -> None:
    this.events.emit(
        "run.start", name=this.job.name, steps=this.job.schedule.steps, profile=this.job.profile,
        content_hash=this.job.content_hash, run_dir=this.run_dir.name, resumed_from=this.resume,
        recorded=_last_recorded_step(this.run_dir, this.resume),
    )  # fmt: skip


def _last_recorded_step(run_dir: Path, resume: int | None) -> int:
    """Return the last step whose metrics were written before the resumed checkpoint."""
    return 0 if resume is None else int(read_state(run_dir, resume)["recorded"])


def read_state(run_dir: Path, step: int) -> dict[str, Any]:
    """Return the controller state in the checkpoint of `step`."""
    path = run_dir / f"checkpoints/step-{step}/controller.json"
    state: dict[str, Any] = json.loads(path.read_text())
    return state


def _replay(run_dir: Path, step: int | None) -> bytes | None:
    """Return the buffered groups in the checkpoint of `step`, or None if there are none."""
    path = run_dir / f"checkpoints/step-{step}" / REPLAY
    return path.read_bytes() if step is not None and path.is_file() else None


def _outcome(this: Run) -> Outcome:
    """Run to an outcome. If this thread already runs an event loop, use another thread."""
    interrupt = Interrupt(this.events, this.run_dir, this.clean_up)
    this.events.subscribe(interrupt.on_event)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_run_to_outcome(this, interrupt))
    return _run_in_thread(_run_to_outcome(this, interrupt), interrupt)


def _run_in_thread(run: Coroutine[Any, Any, Outcome], interrupt: Interrupt) -> Outcome:
    """Wait for a run in another thread (notebooks). Signals reach only the main thread; hand them
    on."""
    loop = asyncio.new_event_loop()

    def press(number: int, frame: object) -> None:
        loop.call_soon_threadsafe(interrupt, number)

    def work() -> Outcome:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(run)

    before = {number: signal.signal(number, press) for number in _signals()}
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> tuple[signal.Signals, ...]:
    """Signals that ask this process to save and stop: SIGINT, SIGTERM, and SIGHUP unless it is
    ignored (`nohup`). Empty outside the main thread, which alone receives signals."""
    if not _in_main():
        return ()
    hangs_up = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *[signal.SIGHUP] * hangs_up)


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()


async def _run_to_outcome(this: Run, interrupt: Interrupt) -> Outcome:
    """Run to an outcome. Errors of a run become outcomes; see `_outcome_of`."""
    for number in _signals():
        asyncio.get_running_loop().add_signal_handler(number, interrupt, number)
    # forgedsl/python/results.py starts runs with a SIGINT that waits for these handlers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _signals())
    task = asyncio.create_task(_execute(this, interrupt))
    interrupt.act = lambda noticed: task.cancel()  # until the controller takes over
    try:
        return await task
    except asyncio.CancelledError:
        return Outcome(code=EXIT_INTERRUPTED, status="interrupted", message=BEFORE_FIRST)
    except Exception as error:
        return _outcome_of(error)


def _outcome_of(error: BaseException) -> Outcome:
    """Turn an error into an outcome; an exception group counts as its first member. A
    `UserCodeError` is raised: the run has not begun."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, UserCodeError):
        raise error
    if isinstance(error, LaunchError):
        return Outcome(code=EXIT_LAUNCH, status="not launched", message=str(error))
    if isinstance(error, RunError):
        guard = isinstance(error, GuardError)
        code, status = (EXIT_GUARD, "stopped by a guard") if guard else (EXIT_FAILED, "failed")
        return Outcome(
            code=code, status=status, message=str(error), origin=error.origin, remedy=error.remedy,
            service=error.service, at_start=isinstance(error, StartError),
        )  # fmt: skip
    if isinstance(error, OSError) and (words := cannot_write(error)):
        return Outcome(code=EXIT_FAILED, status="failed", message=words)
    raise error


async def _execute(this: Run, interrupt: Interrupt) -> Outcome:
    if this.resume is not None:
        from forgedsl_runtime.checkpoints import check_checkpoint
        from forgedsl_runtime.services.registry import kind_of

        kind = kind_of(this.job.services[this.job.trained_service])
        check_checkpoint(this.run_dir, this.resume, kind.spoilt)
    this.events.emit("phase", text="starting services", services=list(this.job.with_processes))
    gpus = any(service.mesh.device == "gpu" for service in this.job.services.values())
    usage = Usage(this.events, gpus=gpus) if this.backend.loads_models else None
    fleet = this.backend.spawn(this)
    cancelled_at_start = False
    try:
        data = await this.backend.prepare(this, fleet)
        watching = None if usage is None else asyncio.create_task(usage.watch(), name="usage")
        try:
            return await _run_controller(this, fleet, data, interrupt)
        finally:
            if watching is not None:
                watching.cancel()
    except asyncio.CancelledError:
        # actors do not answer yet and have nothing to save, so the processes are killed
        cancelled_at_start = True
        raise
    finally:
        if not cancelled_at_start:
            await _stop(this, fleet)


async def _run_controller(this: Run, fleet: Any, data: Any, interrupt: Interrupt) -> Outcome:
    """Build the endpoints, bring all weights to one version, and run the controller."""
    from forgedsl_runtime.controller import Controller
    from forgedsl_runtime.services.supervisor import Supervisor

    state = None if this.resume is None else read_state(this.run_dir, this.resume)
    endpoints = await this.backend.connect(this, fleet, data)
    supervisor = Supervisor(
        fleet, endpoints, this.events, lambda dead: this.backend.restart(this, dead)
    )
    supervisor.start()
    try:
        controller = Controller(
            this.job, endpoints, this.events, state=state, changed_data=this.changed_data,
            replay=_replay(this.run_dir, this.resume),
            record_to=this.run_dir if this.backend.loads_models else None,
        )  # fmt: skip
        grace = this.job.checkpoint.grace_s
        interrupt.act = lambda noticed: controller.interrupt(grace if noticed else None)
        gc.freeze()  # loaded objects stay alive: exclude them from garbage collection
        try:
            finished = await controller.run()
        finally:
            controller.proofs.write(this.run_dir, this.frozen.values())
        if finished.ended == "interrupted":
            words = "" if finished.step else BEFORE_FIRST
            return Outcome(code=interrupt.code(), status="interrupted", message=words)
        await _export(this, endpoints)
        return Outcome(code=EXIT_OK, status="done")
    finally:
        gc.unfreeze()
        supervisor.close()
        await endpoints.close()


async def _export(this: Run, endpoints: Any) -> None:
    """Write the Hugging Face export that `checkpoint.export` asks for."""
    target = this.job.checkpoint.export
    if target is not None:
        with this.events.span("export", path=target) as end:
            written = await endpoints.export(str(this.run_dir / target))
            if written:  # a rehearsal writes nothing
                write_card(this.run_dir, None, Path(written))
            end["written"] = written


async def _stop(this: Run, fleet: Any) -> None:
    """Stop all meshes. `kill_children` kills those that do not stop in time, and those without an
    actor, which could not answer."""
    this.events.emit("phase", text="stopping services")
    meshes = [mesh for mesh in fleet.all_meshes() if mesh.actor is not None]
    results = await asyncio.gather(*(mesh.stop() for mesh in meshes), return_exceptions=True)
    for mesh, result in zip(meshes, results, strict=True):
        if isinstance(result, BaseException):
            this.events.emit(
                "warning",
                service=mesh.service,
                text=f"did not stop in time and was killed: {described(result):.200}",
            )
    fleet.hosts.stop()


def kill_children(others: frozenset[int] = frozenset()) -> None:
    """Kill every child process of the run except `others` (such as a sink that still writes)."""
    for child in psutil.Process().children():
        if child.pid not in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (*child.children(recursive=True), child):
                    process.kill()
