"""Runs a server of a framework, in the environment of the framework, while a test uses it."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ATTEMPTS, PAUSE = 1200, 0.1


@contextmanager
def serving(command: Callable[[int], list[str]], page: str) -> Iterator[str]:
    """Start the command for a free port, wait until the server answers for `page`, and give its
    address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(command(port))
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(ATTEMPTS):
            assert process.poll() is None
            try:
                urllib.request.urlopen(f"{url}/{page}", timeout=5).close()
                break
            except urllib.error.URLError:
                time.sleep(PAUSE)
        yield url
    finally:
        process.kill()
        process.wait()
