"""A process of a pool that is killed while it starts is started again, on a real mesh."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from forgedsl.errors import StartError
from forgedsl.lower import job as spec

DIES = """
import os
import signal
from pathlib import Path

from forgedsl.environment import Environment

LEFT = Path(__file__).with_name("left")
if left := int(LEFT.read_text()):
    LEFT.write_text(str(left - 1))
    os.kill(os.getppid(), signal.SIGKILL)  # the process of the pool, which loads this file


class Desk(Environment):
    pass
"""


def started(
    folder: Path, job: Any, *, kills: int, deaths: int
) -> tuple[Any, list[tuple[str, str]], BaseException | None]:
    """Start the pool of an environment that is killed so often, and had so many deaths before;
    return its mesh, the warnings, and the error."""
    from forgedsl_runtime import meshes

    (folder / "desk.py").write_text(DIES, encoding="utf-8")
    (folder / "left").write_text(str(kills), encoding="utf-8")
    sha256 = hashlib.sha256(DIES.encode()).hexdigest()
    environment = spec.Environment(type_name="Desk", path="desk.py", sha256=sha256)
    job = job.model_copy(update={"environments": {"shop": environment}})
    told: list[tuple[str, str]] = []

    async def main() -> tuple[Any, BaseException | None]:
        fleet = meshes.spawn(job, folder, folder, {})
        fleet.environments["shop"].deaths = deaths
        try:
            await meshes.setup(
                fleet, folder, "key", None, lambda *_: None, lambda *said: told.append(said)
            )
        except BaseExceptionGroup as group:
            return fleet.environments["shop"], group.exceptions[0]
        mesh = fleet.environments["shop"]
        try:
            assert await mesh.one(0, "listen")  # it answers
        finally:
            await mesh.stop()
        return mesh, None

    mesh, error = asyncio.run(main())
    return mesh, told, error


@pytest.mark.full
@pytest.mark.timeout(180)
def test_a_pool_that_is_killed_while_it_starts_is_started_again(
    tmp_path: Path, make_job: Any
) -> None:
    mesh, told, error = started(tmp_path, make_job(), kills=1, deaths=0)
    assert (mesh.deaths, error) == (1, None)
    ((service, text),) = told
    assert service == "shop"
    assert text.startswith("service shop could not start: process of mesh environment_shop")
    assert text.endswith("; it is started again")


@pytest.mark.timeout(180)
def test_a_pool_that_is_killed_too_often_ends_the_run(tmp_path: Path, make_job: Any) -> None:
    from forgedsl_runtime.meshes import DEATHS

    _, told, error = started(tmp_path, make_job(), kills=1, deaths=DEATHS)
    assert told == []
    assert isinstance(error, StartError)
    assert error.service == "shop"


@pytest.mark.timeout(180)
def test_a_process_that_dies_while_it_imports_could_not_start(tmp_path: Path) -> None:
    """It ends before it has an actor."""
    from forgedsl_runtime.actors.reward import RewardPool
    from forgedsl_runtime.meshes import set_up
    from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

    def dies(device: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def main() -> None:
        logs = tmp_path / "generator"
        start = bootstrap({}, logs, "cpu", dies)
        mesh = Mesh.begin(
            service="generator", origin="", name="gen", size=1, start=start, logs=logs
        )
        mesh.run(RewardPool, (None, (), str(tmp_path)), {})
        await set_up(mesh, (), lambda *_: None)

    with pytest.raises(
        StartError, match=r"generator could not start: process of mesh gen: .*sig=9"
    ):
        asyncio.run(main())
