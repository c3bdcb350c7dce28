"""Two questions `setup.sh` has about its environment; standard library only.

`repair` removes packages that an interrupted install left half-written (a file of their RECORD is
missing or has another size), so that pip installs them again instead of calling them satisfied.
`cuda` prints the CUDA libraries torch asks for, one requirement per line; nothing for a CPU build.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path


def is_whole(dist: metadata.Distribution) -> bool:
    """Whether every file of the distribution is there with its recorded size."""
    if not dist.files:
        return False
    for file in dist.files:
        path = Path(str(file.locate()))
        if path.suffix != ".pyc" and not path.is_file():
            return False
        if file.size is not None and path.stat().st_size != file.size:
            return False
    return True


def repair() -> None:
    """Forget the distributions that are not whole."""
    for info in Path(sysconfig.get_path("purelib")).glob("*.dist-info"):
        if not is_whole(metadata.Distribution.at(info)):
            print(f"setup: {info.stem} was left half-installed; installing it again", flush=True)
            shutil.rmtree(info)


def cuda() -> None:
    """Print the requirements of torch that are CUDA libraries."""
    for line in metadata.requires("torch") or []:
        requirement, _, marker = line.partition(";")
        if requirement.startswith(("nvidia", "cuda")) and "extra" not in marker:
            print(requirement.replace(" ", ""))


if __name__ == "__main__":
    {"repair": repair, "cuda": cuda}[sys.argv[1]]()
