"""Planted faults: small changes of the compiler and the runtime, each with a test that finds it.

    planted.jsonl --one at a time, in a copy of the tree--> the test it names --> has to fail

    python compiler_tests/deep/planted.py            all of them, and those that nothing found
    python compiler_tests/deep/planted.py plan/cost  those in files with this in their name
    python compiler_tests/deep/planted.py --tidy     drops rows whose text is gone

A row has the file, a text that occurs once in it (`was`), what it becomes (`now`), and the test
(`found_by`). Who moves or merges tests runs this: a fault that is found no more was lost by that.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("planted.jsonl")
LIMIT_S = 300
"""A fault may make a program endless: this counts as found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One change, and who notices it."""

    file: str
    was: str
    now: str
    found_by: str

    def stands(self) -> bool:
        """Whether the text is still there, once."""
        path = ROOT / self.file
        return path.is_file() and path.read_text(encoding="utf-8").count(self.was) == 1


def faults() -> list[Fault]:
    """The list, in its order."""
    return [Fault(**json.loads(line)) for line in LIST.read_text(encoding="utf-8").splitlines()]


def copy_of_the_tree(folder: Path) -> Path:
    """What git knows and what it does not ignore, copied to where it may be broken."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def is_found(fault: Fault, tree: Path) -> bool:
    """Plant a fault in a copy, and ask its test."""
    path = tree / fault.file
    sound = path.read_text(encoding="utf-8")
    assert sound.count(fault.was) == 1, f"{fault.file}: {fault.was}"
    path.write_text(sound.replace(fault.was, fault.now), encoding="utf-8")
    try:
        return not passes([fault.found_by], tree)
    finally:
        path.write_text(sound, encoding="utf-8")


def passes(tests: list[str], tree: Path) -> bool:
    """Whether tests of the copy exist and pass."""
    # Bytecode is left out: two changes within a second would share it.
    env = os.environ | {"PYTHONPATH": f"{tree}:{tree}/runtime", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *tests, "-x", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> int:
    """Run the list or a part of it, say what is found no more."""
    asked = sys.argv[1:]
    every = faults()
    if asked == ["--tidy"]:
        kept = [fault for fault in every if fault.stands()]
        LIST.write_text("".join(json.dumps(asdict(f)) + "\n" for f in kept), encoding="utf-8")
        print(f"{len(kept)} of {len(every)} rows kept")
        return 0
    chosen = [f for f in every if not asked or any(word in f.file for word in asked)]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_the_tree(Path(folder))
        if not passes(sorted({fault.found_by for fault in chosen}), tree):
            print("a test of the list is gone, or fails without a fault")
            return 1
        for number, fault in enumerate(chosen, 1):
            if not is_found(fault, tree):
                missed.append(fault)
                print(f"not found: {fault.file}: {fault.was}  ->  {fault.now}  ({fault.found_by})")
            elif number % 20 == 0:
                print(f"{number} of {len(chosen)}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} planted faults found")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
