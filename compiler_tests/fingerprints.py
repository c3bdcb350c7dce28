"""Fingerprints of what the compiler makes of the shipped pipelines, to compare two versions.

    python compiler_tests/fingerprints.py > before.json     (in one checkout)
    python compiler_tests/fingerprints.py --against before.json     (in the other)

A case is a pipeline, one of its profiles, and a host. Its fingerprints are hashes of the
diagnostics, the job, the plan, the drawings and the generated program. A change of structure moves
none of them; a change of behaviour moves those that it is about. It takes half a minute.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ["FORGE_CALIBRATION"] = ""  # plans must not depend on runs of this machine

from forgedsl.api import load
from forgedsl.build.python import modules
from forgedsl.cli.graph import Format, View, drawing_from
from forgedsl.lower.build import lower
from forgedsl.plan.text import render_plan
from forgedsl.sizes.hosts import Host

ROOT = Path(__file__).parents[1]
HOSTS = {
    "laptop": Host(gpus=0, gpu=None, gpu_memory=0, cpus=2, memory=8 * 2**30),
    "one": Host(gpus=1),
    "two": Host(gpus=2),
    "eight": Host(),
}
DRAWINGS = (
    (View.DATAFLOW, Format.TEXT),
    (View.DATAFLOW, Format.JSON),
    (View.DATAFLOW, Format.SVG),
    (View.MESH, Format.TEXT),
    (View.SCHEDULE, Format.TEXT),
)


def main() -> int:
    """Print the fingerprints, or what differs from those of a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--against", type=Path, help="fingerprints of another version")
    against = parser.parse_args().against
    found = dict(cases())
    if against is None:
        json.dump(found, sys.stdout, indent=1)
        return 0
    before = json.loads(against.read_text(encoding="utf-8"))
    moved = [
        f"{case}: {', '.join(parts)}"
        for case in sorted(found.keys() | before.keys())
        if (parts := _differences(found.get(case, {}), before.get(case, {})))
    ]
    print("\n".join(moved) or f"{len(found)} cases, nothing moved")
    return bool(moved)


def _differences(now: dict[str, str], before: dict[str, str]) -> list[str]:
    return sorted(part for part in now.keys() | before.keys() if now.get(part) != before.get(part))


def cases() -> Iterator[tuple[str, dict[str, str]]]:
    """Each case by its name, with the hash of each part."""
    for path in sorted((ROOT / "pipelines").glob("*.forge")):
        for profile in ("none", *profiles(path)):
            for name, host in HOSTS.items():
                yield f"{path.stem} {profile} {name}", fingerprint(path, profile, host)


def profiles(path: Path) -> list[str]:
    """Names of the profiles that a pipeline declares."""
    return re.findall(r"^profile (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)


def fingerprint(path: Path, profile: str, host: Host) -> dict[str, str]:
    """The hash of each part of one case."""
    loaded = load(path, profile=profile, host=host)
    parts: dict[str, str] = {}
    if loaded.program is not None and not loaded.reporter.has_errors:
        folder, reporter = path.parent, loaded.reporter
        lowered = lower(
            loaded.program, reporter=reporter, sources=loaded.sources, base_dir=folder, host=host
        )
        if lowered is not None:
            job, graph, plan = lowered.job, lowered.graph, lowered.plan
            parts["job"] = job.model_dump_json()
            parts["plan"] = render_plan(
                loaded.program, graph, plan, summary=job.summary, identity=""
            )
            drawing = drawing_from(loaded, loaded.program, graph, plan)
            parts |= {f"{v}.{f}": drawing.render(v, f) for v, f in DRAWINGS}
            parts["program"] = json.dumps(modules(job), sort_keys=True)
    parts["diagnostics"] = "\n".join(str(each) for each in loaded.reporter)
    texts = {name: text.replace(str(ROOT), "ROOT") for name, text in parts.items()}
    return {name: hashlib.sha256(t.encode()).hexdigest()[:12] for name, t in texts.items()}


if __name__ == "__main__":
    sys.exit(main())
