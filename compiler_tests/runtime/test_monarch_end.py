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
os.write(2, b"begin|")  # Monarch greets
future.Future._from_handle = staticmethod(lambda handle: Never())
print("last line", flush=True)
"""


def test_a_client_that_does_not_end_in_time_is_not_told_behind_the_last_lines() -> None:
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "last line\n")
    assert done.stderr.partition("begin|")[2] == ""
