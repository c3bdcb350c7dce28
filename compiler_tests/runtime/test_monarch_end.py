"""The end of Monarch's client: silent, with the exit code of the run. Whom a death interrupts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENDLESS = """
import atexit, os
from forgedsl.cli import main
from forgedsl_runtime.upstream import monarch

monarch.END_SECONDS = 0.0001

def run():
    atexit.register(os.write, 2, b"said behind the client's end")
    monarch.this_host()
    os.write(2, b"begin|")
    print("last line", flush=True)

main._call = run
main.main()
"""


def test_a_client_that_does_not_end_in_time_is_not_told_behind_the_last_lines() -> None:
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "last line\n"), done.stderr
    told = done.stderr.partition("begin|")[2].splitlines()
    # where other programs take the cores Monarch may greet as late as that
    assert [line for line in told if line and "Monarch internal logs" not in line] == []


ABORTS = """
import atexit, os, sys
from forgedsl.cli import main
sys.modules["forgedsl_runtime.upstream.monarch"] = object()
atexit.register(os.abort)
main._call = lambda: sys.exit(int(sys.argv[1]))
print("the report", flush=False)
main.main()
"""


def test_a_failed_run_ends_with_its_code_whatever_monarch_does_at_the_end() -> None:
    """Once, after `kill -9` of a trainer's rank, it was that of an abort."""
    done = subprocess.run([sys.executable, "-c", ABORTS, "5"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "the report\n")


DIES_LATE = """
import atexit, ctypes, functools, sys
from types import SimpleNamespace
from forgedsl.cli import main

def run():
    client.this_host()
    sys.exit(int(sys.argv[1]))

ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).abort)  # the last that an interpreter does
client = SimpleNamespace(this_host=functools.cache(lambda: None))
sys.modules["forgedsl_runtime.upstream.monarch"] = client
atexit.register(print, "its client has ended")
main._call = run
print("the report", flush=False)
main.main()
"""


@pytest.mark.parametrize("code", [0, 75])
def test_a_run_ends_with_its_code_whatever_happens_as_the_interpreter_ends(code: int) -> None:
    """Once, after a rehearsal that had gone well, it was that of an abort."""
    command = [sys.executable, "-c", DIES_LATE, str(code)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "the report\nits client has ended\n")


KILLS = """
import asyncio, os, signal, sys
from pathlib import Path
from forgedsl_runtime.actors.base import ForgeActor
from forgedsl_runtime.endpoints import ServiceError
from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

async def main(logs):
    mesh = Mesh.spawn(
        service="s", origin="", name="actor", size=1, actor=ForgeActor, args=(), kwargs={},
        start=bootstrap({}, logs, "cpu"), logs=logs,
    )
    (facts,) = await mesh.call("describe")
    os.kill(facts["pid"], signal.SIGKILL)
    try:
        await mesh.call("describe")
    except ServiceError:
        print("told", flush=True)
    await asyncio.sleep(3.0)
    print("goes on", flush=True)

asyncio.run(main(Path(sys.argv[1]) / "actor"))
"""


@pytest.mark.full
def test_a_death_interrupts_nobody_but_who_asks(tmp_path: Path) -> None:
    """Monarch's default ends the main thread as if by Ctrl-C, whatever it does by then."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "told\ngoes on\n")
