"""An agent that is a program: starts its command for a trajectory, reads its reward, ends it.

    ProgramAgent.run(task, model)
        command, with address, key and task in its variables  --HTTP--> the endpoint
        its output, line by line --> standard output of this process (logs/)
        its last line, exit code or file --> reward

Each program has a temporary folder as its working directory, and a mark in its environment. All
processes that carry the mark are killed when the trajectory ends, also those that left its process
group.
"""

from __future__ import annotations

import asyncio
import ctypes
import difflib
import json
import os
import re
import secrets
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from numbers import Real
from pathlib import Path
from typing import Any

from forgedsl.agent import Agent, Model
from forgedsl.environment import Task
from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.shipped import SHIPPED, locate
from forgedsl_runtime.temporary_files import RUN, kill_marked, marks
from forgedsl_runtime.worker_process import PR_SET_PDEATHSIG

POOL = "FORGEDSL_POOL"
"""environment variable that all agent programs of one environment process have; its value is the
mark of that process, which begins with the PID of its parent"""
TRAJECTORY = "FORGEDSL_TRAJECTORY"
"""environment variable of the programs of a trajectory"""
INHERITED = (
    "HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "TERM", "FORGEDSL_RUN",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""environment variables that a program inherits from the run. It gets others, such as keys or
PYTHONPATH, only if its declaration names them"""
ROWS = ("task", "target")
"""placeholders whose values are those of a row. They are replaced last, since they may contain
`{url}`"""
LOOPBACK = "127.0.0.1,localhost"
GRACE = 1.0
"""seconds between the signals TERM and KILL"""
TAIL = 64
"""lines of output that are kept, for the reward and for messages"""
LINE = 64 << 10
"""bytes of a line; the rest is dropped"""
LOGGED = 256 << 10
"""bytes of output of one trajectory that go to the log"""


class ProgramFailed(Exception):
    """A program ended without a reward. Its text is the cause."""


class ProgramAgent(Agent):
    """The agent of one trajectory. `name` is that of the environment, for the log."""

    def __init__(self, name: str, program: _Program) -> None:
        self._name, self._program = name, program

    async def run(self, task: Task, model: Model) -> Any:
        """Run the program to its end; return its reward.

        Raises:
            ProgramFailed: it could not be started, ended with an error, or left no reward.
        """
        async with self._program.slots:
            folder = Path(tempfile.mkdtemp(prefix="agent-"))
            try:
                return await self._run(task, model, folder)
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _run(self, task: Task, model: Model, folder: Path) -> Any:
        for word in self._program.in_job:
            _checked_target(word, str(task.target))
        mark = secrets.token_hex(8)
        seed = self.rng.getrandbits(32)
        places = _placeholders(task, model, folder)
        (folder / "task.json").write_text(json.dumps({**asdict(task), "seed": seed}), "utf-8")
        work = folder / "work"
        work.mkdir()
        log = _Log(f"[{self._name} {mark[:6]}] ")
        with log.pipe() as out, log.pipe(keep=False) as err:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(_filled(word, places) for word in self._program.command),
                    stdin=PIPE if self._program.spec.stdin else DEVNULL,
                    stdout=out.inlet, stderr=err.inlet, cwd=work, start_new_session=True,
                    env=self._program.environment(places, mark, seed, folder),
                    preexec_fn=_die_with_parent,
                )  # fmt: skip
            except OSError as error:
                raise ProgramFailed(f"its program cannot be started: {error}") from error
            try:
                await out.start()
                await err.start()
                if process.stdin is not None:
                    with suppress(ConnectionError):
                        process.stdin.write(task.text.encode())
                        await process.stdin.drain()
                        process.stdin.close()
                code = await process.wait()
            finally:
                await _end(process, mark)
                await out.drained()
                await err.drained()
        return self._reward(code, log, folder)

    def _reward(self, code: int, log: _Log, folder: Path) -> Any:
        """Return the reward that a program left."""
        form = self._program.spec.reward
        if form == "exit" and code in (0, 1):
            return 1.0 - code
        if code:
            how = (
                f"was killed by {signal.Signals(-code).name}"
                if code < 0
                else f"ended with exit code {code}"
            )
            said = f"{log.last_error} " if log.last_error else ""
            raise ProgramFailed(f"{said}(its program {how})")
        if form == "none":
            return None
        if form == "file":
            path = folder / "reward"
            if not path.is_file():
                raise ProgramFailed("its program wrote no file $FORGE_REWARD")
            return _parsed(path.read_text("utf-8", "replace"), "the file $FORGE_REWARD")
        return _parsed(log.last_line, "the last line of its program")


def _parsed(text: str, what: str) -> Any:
    """Parse a reward: a number, or a JSON object with rewards by part.

    Raises:
        ProgramFailed: it is neither.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, bool) or not isinstance(value, Real | Mapping):
        raise ProgramFailed(f"{what} is neither a number nor a JSON object of parts: {text[:80]!r}")
    return value


class _Program:
    """The checked command and its environment variables, shared by all trajectories of a
    process."""

    def __init__(self, served: spec.AgentProgram, scripts: Mapping[str, str], folder: Path) -> None:
        self.spec, self._scripts = served, scripts
        self.slots = asyncio.Semaphore(served.concurrency or 1 << 30)
        self.command = [
            str(locate(word, folder)) if word in scripts or _in_job(word, scripts) else word
            for word in served.command
        ]
        self.in_job = [
            made
            for word, made in zip(served.command, self.command, strict=True)
            if _in_job(word, scripts) and word.endswith("/{target}")
        ]
        self.inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self.inherited |= {k: v for k, v in os.environ.items() if k.startswith("LC_")}
        for name in ("NO_PROXY", "no_proxy"):  # the endpoint is on this host
            before = self.inherited.get(name, "")
            self.inherited[name] = f"{before},{LOOPBACK}" if before else LOOPBACK
        self.own = {POOL: os.environ.get(POOL, "")}

    def environment(
        self, places: Mapping[str, str], mark: str, seed: int, folder: Path
    ) -> dict[str, str]:
        """Return the environment variables of the program of a trajectory."""
        url, key = places["url"], places["key"]
        given = {
            "OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": places["anthropic_url"], "ANTHROPIC_API_KEY": key,
            "FORGE_MODEL": places["model"], "FORGE_TASK": places["task_file"],
            "FORGE_REWARD": str(folder / "reward"), "FORGE_SEED": str(seed),
            "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", TRAJECTORY: mark,
        }  # fmt: skip
        for variable in self.spec.variables:
            name, is_given, value = variable.partition("=")
            given[name] = _filled(value, places) if is_given else os.environ[name]
        return {**self.inherited, **given, **self.own}


def load_program(served: spec.AgentProgram, scripts: Mapping[str, str], folder: Path) -> _Program:
    """Return a program whose command exists on this host.

    Raises:
        LaunchError: it cannot be started.
    """
    found = _Program(served, scripts, folder)
    word = found.command[0]
    if served.command[0] in scripts and not served.command[0].startswith(SHIPPED):
        Path(word).chmod(0o700)  # the copy in the run folder is not executable
    missing = [n for n in served.variables if "=" not in n and n not in os.environ]
    if missing:
        raise LaunchError(
            f"the environment variable {missing[0]} is not set; run `export {missing[0]}=...`"
        )
    if Path(word).is_absolute() and not Path(word).exists():
        raise LaunchError(f"its program {word} does not exist on this host")
    if shutil.which(word, path=found.inherited.get("PATH")) is None:
        why = "is not executable" if "/" in word else "is not on the PATH of this host"
        raise LaunchError(f"its program {word} {why}")
    return found


def _placeholders(task: Task, model: Model, folder: Path) -> dict[str, str]:
    return {
        "url": model.url, "anthropic_url": model.url.removesuffix("/v1"), "key": model.key,
        "model": model.name, "task": task.text, "task_file": str(folder / "task.json"),
        "target": "" if task.target is None else str(task.target),
    }  # fmt: skip


def _filled(text: str, places: Mapping[str, str]) -> str:
    """Replace `{url}` and the like. Other braces stay, so that a command may contain JSON."""
    for name, value in places.items():
        if name not in ROWS:
            text = text.replace(f"{{{name}}}", value)
    return re.sub(r"\{(task|target)\}", lambda found: places[found[1]], text)


def _in_job(word: str, scripts: Mapping[str, str]) -> bool:
    """Return True for `tasks/{target}` if the job has files in `tasks`."""
    before, target, _ = word.partition("{target}")
    return bool(target) and "/" in before and any(each.startswith(before) for each in scripts)


def _checked_target(word: str, target: str) -> None:
    """Check that the row names a file or folder beside others.

    Raises:
        ProgramFailed: there is none of this name.
    """
    place, name = Path(word.partition("{target}")[0]), Path(target)
    if len(name.parts) != 1 or name.parts[0] == ".." or not (place / name).exists():
        close = difflib.get_close_matches(target, [each.name for each in place.iterdir()], n=1)
        near = f"; did you mean {close[0]}?" if close else ""
        raise ProgramFailed(f"the target {target!r} is no name in {place.name}{near}")


# ---- output


class _Log:
    """Output of one program: printed with a prefix, and its last lines."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._left = prefix, LOGGED
        self._out: deque[str] = deque(maxlen=TAIL)
        self._err: deque[str] = deque(maxlen=TAIL)

    @property
    def last_line(self) -> str:
        """The last line of its standard output that is not blank."""
        return self._out[-1].strip() if self._out else ""

    @property
    def last_error(self) -> str:
        """The last line of its standard error, or else of its output."""
        lines = self._err or self._out
        return lines[-1].strip()[:400] if lines else ""

    def pipe(self, *, keep: bool = True) -> _Pipe:
        return _Pipe(self, self._out if keep else self._err)

    def line(self, raw: bytes, lines: deque[str]) -> None:
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        if text.strip():
            lines.append(text)
        if self._left > 0:
            self._left -= len(raw)
            end = "" if self._left > 0 else f"\n{self._prefix}... (more output is not logged)"
            print(f"{self._prefix}{text}{end}", flush=True)


class _Pipe(asyncio.Protocol):
    """A pipe whose lines go to a log. Processes that outlive the program may hold its other end, so
    `drained` waits for what is in the pipe, not for its end."""

    def __init__(self, log: _Log, lines: deque[str]) -> None:
        self._log, self._lines = log, lines
        self._rest = bytearray()
        self._transport: asyncio.ReadTransport | None = None
        self._ended = asyncio.Event()

    def __enter__(self) -> _Pipe:
        self._outlet, self.inlet = os.pipe()
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.inlet)
        if self._transport is not None:
            self._transport.close()
        else:
            os.close(self._outlet)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        file = os.fdopen(self._outlet, "rb", buffering=0)
        self._transport, _ = await loop.connect_read_pipe(lambda: self, file)

    async def drained(self) -> None:
        os.close(self.inlet)  # our write end: after this, the reader can see EOF
        self.inlet = os.open(os.devnull, os.O_WRONLY)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await self._ended.wait()
        if self._rest:
            self._log.line(bytes(self._rest), self._lines)
            self._rest.clear()

    def data_received(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._log.line(bytes(self._rest) + line, self._lines)
            self._rest.clear()
        self._rest += rest[: LINE - len(self._rest)]

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set()


# ---- ends


def _die_with_parent() -> None:
    """Runs in the new process: have the kernel kill it when its parent, this process, dies."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


_LIBC = ctypes.CDLL(None)


async def _end(process: asyncio.subprocess.Process, mark: str) -> None:
    """End a program and all that it started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await process.wait()
    await asyncio.to_thread(kill_marked, f"{TRAJECTORY}={mark}")
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def kill_orphans() -> None:
    """Kill processes that were started by agent programs of this run, if the environment process
    above them has ended."""
    run = os.environ.get(RUN)
    for mark in {mark for mark in marks(POOL, f"{RUN}={run}") if run}:
        if not Path("/proc", mark.partition("-")[0]).exists():
            kill_marked(f"{POOL}={mark}")
