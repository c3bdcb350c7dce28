"""Checks of this machine, for `forgec doctor`: what it has, and what runs would lack here.

host, packages, driver, memory, disks, limits, network --> a Check each

No check imports torch or starts a process of a run, so that all of them take about a second.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from forgedsl.plan.gpus import detect_gpus
from forgedsl.records import dataclass

OK, NOTE, LACKS = "ok", "note", "LACKS"
GIB = 2**30
FILES = 4096
"""open files that a process may have; a run with a hundred processes needs some thousands"""
SHM_LEAST, SHM_USUAL = 64 * 2**20, 1 * GIB
"""bytes of /dev/shm: containers have the first by default; weights of a 1B model need the second"""
DISK_LEAST = 10 * GIB
HUB = "https://huggingface.co"
SECONDS = 5.0
"""time limit for an answer of the hub"""
DRIVERS = {"13": 580, "12": 525}
"""by major version of CUDA: the least driver, from NVIDIA's table of minor version compatibility"""
NEEDED = ("torch", "torchmonarch", "torchtitan", "transformers", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A result: `state` is OK, NOTE or LACKS. `remedy` says what to do about the last two."""

    name: str
    state: str
    text: str
    remedy: str = ""


def machine_checks() -> Iterator[Check]:
    """Check everything that does not depend on a file. On another system than Linux, where no run
    starts, that is the only check."""
    system = _system()
    yield system
    if system.state == LACKS:
        return
    yield from _packages()
    yield _gpus()
    yield _memory()
    yield _shared_memory()
    yield from _disks()
    yield _limits()
    yield _network()
    yield _hub()


def _system() -> Check:
    system, machine = platform.system(), platform.machine()
    text = f"{system} {platform.release()}, {machine}, Python {platform.python_version()}"
    if system != "Linux":
        return Check(
            name="system", state=LACKS, text=text,
            remedy="runs need Linux; lint, plan, graph, sim and build work here",
        )  # fmt: skip
    return Check(name="system", state=OK, text=text)


# ---- packages


def _lock() -> Path:
    kind = "gpu" if detect_gpus() else "cpu"
    return Path(__file__).parents[1] / "requirements" / f"{kind}.txt"


def pins() -> dict[str, str]:
    """Return the tested versions: those of the lock file for this machine, by package."""
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", _lock().read_text("utf-8"), re.M)
    return {name.lower(): pin for name, pin in found}


def _packages() -> Iterator[Check]:
    """Yield a check of the packages that runs need, and one of those whose version is not the
    tested one."""
    tested = pins()
    names = [next((n for n in tested if n in (name, f"{name}-cpu")), name) for name in NEEDED]
    have = {name: found for name in names if (found := installed(name))}
    missing = [name for name in names if name not in have]
    text = ", ".join(f"{name} {found}" for name, found in have.items()) or "none of them"
    if missing:
        yield Check(
            name="packages", state=LACKS, text=f"not installed: {', '.join(missing)}",
            remedy=f"{sys.executable} -m pip install --no-deps -r {_lock()}",
        )  # fmt: skip
    else:
        yield Check(name="packages", state=OK, text=text)
    other = [
        f"{name} {found} (tested: {pin})"
        for name, pin in tested.items()
        if (found := installed(name)) and found.partition("+")[0] != pin.partition("+")[0]
    ]
    if other:
        yield Check(
            name="versions", state=NOTE, text=", ".join(other),
            remedy="if something fails, install the tested versions: "
            f"{sys.executable} -m pip install --no-deps -r {_lock()}",
        )  # fmt: skip


def installed(name: str) -> str:
    """Return the installed version of a package, or "" if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


# ---- devices and memory


def _gpus() -> Check:
    gpus = detect_gpus()
    if not gpus:
        amd = shutil.which("rocm-smi") or shutil.which("amd-smi")
        if amd:
            return Check(
                name="gpus", state=NOTE, text=f"no NVIDIA GPU, but {amd} is installed",
                remedy="AMD GPUs have not been tried; services run on the CPU here",
            )  # fmt: skip
        why = "no NVIDIA GPU is visible" if shutil.which("nvidia-smi") else "none"
        return Check(name="gpus", state=OK, text=f"{why}; services run on the CPU")
    counts: dict[tuple[str, int], int] = {}
    for gpu in gpus:
        counts[gpu] = counts.get(gpu, 0) + 1
    text = ", ".join(f"{n} x {name}, {size / GIB:.0f} GiB" for (name, size), n in counts.items())
    driver = _driver()
    text += f", driver {driver}" if driver else ""
    torch = installed("torch")
    if torch.endswith("+cpu"):
        return Check(
            name="gpus", state=LACKS, text=f"{text}; torch {torch} is built for CPUs",
            remedy=f"{sys.executable} -m pip install --no-deps -r {_lock()}",
        )  # fmt: skip
    least = DRIVERS.get(_cuda(torch), 0)
    if driver and int(driver.partition(".")[0]) < least:
        return Check(
            name="gpus", state=LACKS, text=text,
            remedy=f"torch {torch} needs NVIDIA driver {least} or newer",
        )  # fmt: skip
    return Check(name="gpus", state=OK, text=text)


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip()


def _cuda(torch: str) -> str:
    """Return the major version of CUDA that a build of torch is for: `2.13.0+cu130` -> "13"."""
    found = re.search(r"\+cu(\d\d)", torch)
    return found[1] if found else "13"


def memory() -> tuple[int, int]:
    """Return bytes of memory: (all that this process may use, what is available now)."""
    info = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M))
    total, free = (int(info[key]) * 1024 for key in ("MemTotal", "MemAvailable"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        total, free = min(total, int(text)), min(free, max(0, int(text) - used))
    return total, free


def _memory() -> Check:
    cores = len(os.sched_getaffinity(0))
    total, free = memory()
    text = f"{total / GIB:.1f} GiB, {free / GIB:.1f} GiB available, {cores} cores"
    if free < 6 * GIB:
        return Check(
            name="memory", state=NOTE, text=text,
            remedy="the smallest shipped pipeline takes about 6 GiB",
        )  # fmt: skip
    return Check(name="memory", state=OK, text=text)


def _shared_memory() -> Check:
    folder = Path("/dev/shm")
    remedy = "a container gets more with --shm-size 8g"
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return Check(name="shm", state=LACKS, text=f"{folder} is not writable", remedy=remedy)
    free = shutil.disk_usage(folder).free
    text = f"{free / GIB:.1f} GiB free in {folder}"
    state = LACKS if free < SHM_LEAST else NOTE if free < SHM_USUAL else OK
    return Check(name="shm", state=state, text=text, remedy="" if state == OK else remedy)


# ---- disks, limits, network


def _disks() -> Iterator[Check]:
    """Yield checks of the folders that runs write to: one check per disk."""
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    folders = {"run folders": Path(), "temporary files": Path(tempfile.gettempdir()),
               "models of the hub": cache}  # fmt: skip
    disks: dict[int, list[str]] = {}
    for what, folder in folders.items():
        there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
        disks.setdefault(there.stat().st_dev, []).append(f"{what} in {folder.absolute()}")
        if not os.access(there, os.W_OK | os.X_OK):
            yield Check(
                name="disk", state=LACKS, text=f"{there} is not writable ({what})",
                remedy="choose another place with --run-dir, TMPDIR or HF_HOME",
            )  # fmt: skip
    for names in disks.values():
        place = Path(names[0].rpartition(" in ")[2])
        there = next(p for p in (place, *place.parents) if p.exists())
        free = shutil.disk_usage(there).free
        state = OK if free >= DISK_LEAST else NOTE
        yield Check(
            name="disk", state=state, text=f"{free / GIB:.1f} GiB free: {', '.join(names)}",
            remedy="" if state == OK else "models and checkpoints may not fit",
        )  # fmt: skip


def _limits() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft:,} open files" if soft != resource.RLIM_INFINITY else "any number of open files"
    if soft != resource.RLIM_INFINITY and soft < FILES:
        more = f"ulimit -n {FILES}" if hard == resource.RLIM_INFINITY or hard >= FILES else (
            f"an administrator can raise the limit of {hard:,}")  # fmt: skip
        return Check(
            name="limits", state=NOTE, text=text,
            remedy=f"runs with many processes may need more: {more}",
        )  # fmt: skip
    return Check(name="limits", state=OK, text=text)


def _network() -> Check:
    """Open a port on the loopback address: judges, endpoints of agents and collectives need it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=SECONDS).close()
    except OSError as error:
        return Check(
            name="ports", state=LACKS, text=f"no port opens on 127.0.0.1: {error.strerror}",
            remedy="processes of a run reach each other there; ask for a network namespace with "
            "a loopback device",
        )  # fmt: skip
    return Check(name="ports", state=OK, text="ports open on 127.0.0.1")


def unreachable(url: str) -> str:
    """Connect to the host of a URL. Returns why that fails; "" if it works, or if a proxy would
    connect."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return ""
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((host, port), timeout=SECONDS).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _hub() -> Check:
    """Ask the Hugging Face hub for a page, unless the environment forbids it."""
    from urllib.error import HTTPError
    from urllib.parse import urlsplit
    from urllib.request import Request, urlopen

    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return Check(name="hub", state=OK, text="not asked: HF_HUB_OFFLINE is set")
    url = os.environ.get("HF_ENDPOINT") or HUB
    host = urlsplit(url).netloc or url
    try:
        with urlopen(Request(url, method="HEAD"), timeout=SECONDS):
            return Check(name="hub", state=OK, text=f"{host} answers")
    except HTTPError as error:  # an error status is still an answer
        return Check(name="hub", state=OK, text=f"{host} answers ({error.code})")
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        return Check(
            name="hub", state=NOTE, text=f"{host} cannot be reached ({why})",
            remedy="models and data must be local files or in the cache; HF_ENDPOINT names a "
            "mirror",
        )  # fmt: skip
