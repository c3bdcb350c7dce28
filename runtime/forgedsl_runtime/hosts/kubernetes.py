"""Launcher `kubernetes`: the pods of the Job that this process runs in, each with a worker.

    manifest --> every pod runs this module; the first pod also runs the controller, which attaches
                 all pods

A pod that ends fails its Job, and Kubernetes ends the other pods: nothing has to be stopped here.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.launchers.kubernetes import RANK, WORKERS
from forgedsl_runtime.hosts.addresses import LOOPBACK, address_reachable_from
from forgedsl_runtime.hosts.base import Hosts
from forgedsl_runtime.upstream.monarch import attach_hosts, serve, this_host

START_SECONDS = 900.0
"""long, because a node may have to pull the image first"""


class PodHosts(Hosts):
    """Each host is a pod. A single host is the pod of this process."""

    _all: Any = None
    _controller_address = LOOPBACK

    def start(self, count: int, settings: Mapping[str, Any], temp: Path, logs: Path) -> None:
        addresses = os.environ[WORKERS].split(",")
        if len(addresses) < count:
            raise LaunchError(
                f"the plan uses {count} hosts, but there are {len(addresses)} pods: apply the "
                "manifests that `forgec build --emit k8s` writes for this plan"
            )
        self.count = count
        if count > 1:
            self._controller_address = address_reachable_from(_wait_for_pods(addresses[:count]))
            self._all = attach_hosts(addresses[:count], at=self._controller_address)

    def address(self) -> str:
        return self._controller_address

    def attach(self, which: range) -> Any:
        if self._all is None:
            return this_host()
        return self._all.slice(hosts=slice(which.start, which.stop))

    def kill(self, on: range, pids: Sequence[int]) -> None:
        if on == range(1):  # pids of other pods mean nothing here
            super().kill(on, pids)


def _wait_for_pods(addresses: Sequence[str]) -> str:
    """Wait until each pod listens; return the IP address of the first one.

    Raises:
        LaunchError: one does not listen in time.
    """
    end, found = time.monotonic() + START_SECONDS, []
    for address in addresses:
        name, _, port = address.removeprefix("tcp://").partition(":")
        while True:
            try:
                with socket.create_connection((name, int(port)), timeout=5.0) as there:
                    found.append(str(there.getpeername()[0]))
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise LaunchError(
                        f"nothing listens at {address} after {START_SECONDS:.0f} s ({error}): "
                        f"`kubectl describe pod {name.partition('.')[0]}` shows the reason"
                    ) from error
            time.sleep(0.5)
    return found[0]


if __name__ == "__main__":
    mine = os.environ[WORKERS].split(",")[int(os.environ[RANK])]
    serve(f"{mine}@tcp://0.0.0.0:{mine.rpartition(':')[2]}")
