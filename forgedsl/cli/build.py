"""`forgec build FILE -o DIR`: everything FILE compiles to, as files to read, review and run.

    FILE.forge --passes--> State --EMITS--> DIR/{main.py, functions.py, losses/, job.json, ...}

Exit codes: 0, 1 errors in the file, 2 bad usage, 4 it does not fit the host.
The written files are listed on stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli import passes
from forgedsl.cli.parser import Parser
from forgedsl.errors import write_text

if TYPE_CHECKING:
    from forgedsl.build.artifacts import Emit
    from forgedsl.passes.state import State


def parser() -> Parser:
    parser = Parser("build", command.__doc__, "FILE -o DIR")
    passes.add_file(parser)
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="DIR", help="where files go"
    )
    parser.add_argument(
        "--emit", action="append", metavar="NAME[,NAME]", help="what to write; repeatable"
    )
    passes.add_profile(parser)
    parser.add_overrides()
    passes.add_host(parser)
    passes.add_passes(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    file: Path,
    out: Path,
    emit: list[str] | None,
    profile: str,
    set_: list[str] | None,
    set_file: list[Path] | None,
    host: str,
    print_after: list[str] | None,
    timings: bool,
) -> None:
    """Write the results of compiling FILE: plan, job, generated programs, loss kernels, ...

    NAME is one of these, by default graph,plan,job,python,math
      tokens, ast, hir     the text, its tree, names and values
      graph, plan          nodes and edges; places, memory and queues (plan.json runs)
      job, python          job.json; main.py with its modules: each runs by itself
      torch, triton, math  the losses and their gradients
      sbatch, k8s          the same plan for Slurm and Kubernetes
      all                  all of them

    Examples:
      forgec build pipelines/grpo_math.forge -o out --profile cpu
      forgec build pipelines/grpo_math.forge -o out --emit python,sbatch --profile cluster
      forgec build pipelines/grpo_math.forge -o out trainer.procs=2 --emit plan
      python out/main.py --steps 3
    """
    from forgedsl.cli.compiling import print_planned
    from forgedsl.cli.host import host_of
    from forgedsl.cli.planning import plan_file

    emits, where = _chosen(emit), host_of(host, "build")
    planned = plan_file(
        file, profile=profile, overrides=tuple(set_ or ()), host=where, timings=timings,
        set_files=tuple(set_file or ()),
        wanted=tuple(e.on_demand for e in emits if e.on_demand),
        print_after=passes.checked_passes("build", print_after),
    )  # fmt: skip
    print_planned(planned.loaded, profile, where)
    if planned.lowered is None or planned.state is None:
        raise SystemExit(planned.code)
    _write(out, planned.state, [emit.name for emit in emits])


def _chosen(given: list[str] | None) -> list[Emit]:
    """Return the rows of EMITS that were asked for; exit with 2 if one does not exist."""
    from forgedsl.build.artifacts import DEFAULT, EMITS
    from forgedsl.mistakes.suggest import did_you_mean, nearest

    known = [emit.name for emit in EMITS]
    words = [word.strip() for text in given or DEFAULT for word in text.split(",") if word.strip()]
    if "all" in words:
        words = known
    for word in words:
        if word not in known:
            hint = did_you_mean(nearest(word, known)) or f"there are {', '.join(known)}, and all"
            print(f"forgec build: there is no output `{word}`; {hint}", file=sys.stderr)
            raise SystemExit(2)
    return [emit for emit in EMITS if emit.name in words]


def _write(out: Path, state: State, names: list[str]) -> None:
    """Write all files, copy the files that the job reads beside them, and list them."""
    from forgedsl.build.artifacts import MANIFESTS, build, inputs, other_launcher_note
    from forgedsl.cli.inputs import copy_inputs

    files = build(state, names)
    for path, text in files.items():
        target = out / path
        write_text(target, text)
    copy_inputs(dict(inputs(state, names)), out)
    for path in sorted(files):
        print(out / path)
    assert state.job is not None
    for launcher, manifest in MANIFESTS:
        if manifest.emit in names and (note := other_launcher_note(state.job.job, launcher)):
            print(f"note: {manifest.file}: {note}", file=sys.stderr)
