"""Monarch's client ends before the hook that Monarch registers, and without a word of its."""

from __future__ import annotations

import subprocess
import sys

ENDLESS = """
import os
from monarch._src.actor import actor_mesh, future
from forgedsl.runtime.upstream import monarch

class Never:
    def get(self, timeout=None):
        os.write(2, b"said by a thread of Rust")
        raise TimeoutError

monarch.this_host()
os.write(2, b"begin|")
future.Future._from_handle = staticmethod(lambda handle: Never())
print("last line", flush=True)
"""


def test_a_client_that_does_not_end_in_time_is_not_told_behind_the_last_lines() -> None:
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "last line\n")
    told = done.stderr.partition("begin|")[2].splitlines()
    # where other programs take the cores Monarch may greet as late as that
    assert [line for line in told if line and "Monarch internal logs" not in line] == []


ABORTS = """
import atexit, os, sys
from forgedsl.cli import main
sys.modules["forgedsl.runtime.upstream.monarch"] = object()
atexit.register(os.abort)
main._call = lambda: sys.exit(int(sys.argv[1]))
print("the report", flush=False)
main.main()
"""


def test_a_failed_run_ends_with_its_code_whatever_monarch_does_at_the_end() -> None:
    """Once, after `kill -9` of a trainer's rank, it was that of an abort."""
    done = subprocess.run([sys.executable, "-c", ABORTS, "5"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "the report\n")
