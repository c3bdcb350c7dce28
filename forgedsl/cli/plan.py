"""`forgec plan FILE`: shows placement, memory and cost of a run without running it.

    FILE.forge --load--> Program --lower--> Lowered --render--> text | JSON
                                      `--> -o plan.json (with the job and, beside it, its inputs)

The hosts are those that `--host` describes, else those of the file's `cluster`, else this host.
Exit codes: 0, 1 errors in the file, 2 bad usage, 3 with --detailed-exitcode if it differs from
--against, 4 it does not fit the host.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli import passes
from forgedsl.cli.parser import Parser
from forgedsl.errors import writing

if TYPE_CHECKING:
    from forgedsl.cli.planning import Planned
    from forgedsl.lower.build import Lowered
    from forgedsl.lower.diff import Change
    from forgedsl.plan.alternatives import Alternatives as Found
    from forgedsl.sizes.hosts import Host

DIFFERS = 3


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


def parser() -> Parser:
    parser = Parser("plan", command.__doc__, "FILE")
    passes.add_file(parser)
    passes.add_profile(parser)
    parser.add_overrides()
    parser.add_argument(
        "-o", "--out", type=Path, metavar="PATH", help="write plan.json, for `forgec run`"
    )
    parser.add_choice("format", Format, Format.TEXT, help="what to print")
    parser.add_argument(
        "--against", metavar="RUN|FILE", help=("also list the differences from this run or file")
    )
    parser.add_argument(
        "--detailed-exitcode", action="store_true", help="exit 3 if it differs from --against"
    )
    passes.add_host(parser)
    parser.add_argument(
        "--alternatives", action="store_true",
        help="list the best placements on the host, instead of the plan",
    )  # fmt: skip
    passes.add_passes(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    file: Path,
    profile: str,
    set_: list[str] | None,
    set_file: list[Path] | None,
    out: Path | None,
    format_: Format,
    against: str | None,
    detailed_exitcode: bool,
    host: str,
    alternatives: bool,
    print_after: list[str] | None,
    timings: bool,
) -> None:
    """Show meshes, memory, queues, policy age, liveness (no deadlock) and cost; run nothing.

    Examples:
      forgec plan pipelines/grpo_math.forge
      forgec plan pipelines/grpo_math.forge --profile cluster
      forgec plan pipelines/grpo_math.forge --host 8xH200 generator.replicas=1 --trainer.procs 2
      forgec plan pipelines/grpo_math.forge --host 4xH100 --alternatives
      forgec plan pipelines/grpo_math.forge -o plan.json && forgec run plan.json
      forgec plan pipelines/grpo_math.forge --against runs/last --detailed-exitcode
    """
    if detailed_exitcode and against is None:
        print("forgec plan: --detailed-exitcode needs --against RUN|FILE", file=sys.stderr)
        raise SystemExit(2)
    from forgedsl.cli.compiling import print_planned
    from forgedsl.cli.host import host_of
    from forgedsl.cli.planning import plan_file

    overrides, set_files = tuple(set_ or ()), tuple(set_file or ())
    where = host_of(host, "plan")
    planned = plan_file(
        file, profile=profile, overrides=overrides, set_files=set_files, host=where,
        timings=timings, print_after=passes.checked_passes("plan", print_after),
    )  # fmt: skip
    print_planned(planned.loaded, profile, where)
    changes = None
    if planned.lowered is not None:
        changes = _changes(against, planned.lowered, profile, overrides, set_files, file, where)
        if out is not None:
            _write(planned.lowered, out)
    others = _alternatives(planned, where) if alternatives else None
    if format_ is Format.JSON:
        sys.stdout.write(document(planned, changes, others))
    else:
        sys.stdout.write(page(planned, against, changes, others))
    raise SystemExit(DIFFERS if changes and detailed_exitcode else planned.code)


def _alternatives(planned: Planned, host: Host) -> Found | None:
    """Search for alternative placements, even if the file's own does not fit; None without a
    graph."""
    from forgedsl.plan.alternatives import alternatives

    state = planned.state
    if state is None or state.hir is None or state.graph is None:
        return None
    return alternatives(state.hir, state.graph, state.plan, host=host, base_dir=state.folder)


def _changes(
    against: str | None,
    lowered: Lowered,
    profile: str,
    overrides: tuple[str, ...],
    set_files: tuple[Path, ...],
    file: Path,
    host: Host,
) -> tuple[Change, ...] | None:
    """Return the differences to a run, a file or a revision. Another file is compiled with the same
    profile and overrides. The same file is compiled without them, to show what they change."""
    from forgedsl.cli.overrides import SideError
    from forgedsl.cli.planning import read_side
    from forgedsl.lower.diff import compare

    if against is None:
        return None
    if against == str(file):
        overrides, set_files = (), ()
    try:
        side = read_side(
            against, profile=profile, overrides=overrides, set_files=set_files, beside=file,
            host=host,
        )  # fmt: skip
    except SideError as error:
        print(f"forgec plan: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    return compare(side.job, lowered.job)


def _write(lowered: Lowered, out: Path) -> None:
    """Write plan.json and, beside it, the files that its job reads."""
    from forgedsl.cli.inputs import copy_inputs
    from forgedsl.lower.document import document_text, plan_document

    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        copy_inputs({name: source for source, name in lowered.files}, out.parent)
        out.write_text(document_text(plan_document(lowered)), encoding="utf-8")
    print(f"wrote {out}; `forgec run {out}` runs it", file=sys.stderr)


def page(
    planned: Planned,
    against: str | None = None,
    changes: tuple[Change, ...] | None = None,
    others: Found | None = None,
) -> str:
    """The page that the command prints; empty without a plan."""
    from forgedsl.plan.alternatives import render as render_alternatives
    from forgedsl.plan.text import render_plan

    lowered = planned.lowered
    if others is not None:
        return render_alternatives(others)
    if lowered is None:
        return ""
    assert planned.loaded.program is not None
    job = lowered.job
    text = render_plan(
        planned.loaded.program,
        lowered.graph,
        lowered.plan,
        summary=job.summary,
        identity=job.content_hash,
    )
    if changes is None:
        return text
    from forgedsl.report.diff import render

    return f"{text}\n{render(changes, title=f'changes against {against}')}"


def document(
    planned: Planned, changes: tuple[Change, ...] | None = None, others: Found | None = None
) -> str:
    """Return the document of plan.json with diagnostics, changes and alternatives; without a plan,
    only these."""
    import json
    from dataclasses import asdict

    from forgedsl.lower.document import FORMAT_VERSION, document_text, plan_document
    from forgedsl.plan.alternatives import as_json
    from forgedsl.report.json import as_dict

    sources = planned.loaded.sources
    body = {"diagnostics": [as_dict(d, sources) for d in planned.loaded.reporter]}
    if others is not None:
        body["alternatives"] = as_json(others)
    if planned.lowered is None:
        return json.dumps({"format_version": FORMAT_VERSION, "job": None, **body}, indent=1) + "\n"
    if changes is not None:
        body["changes"] = [asdict(change) for change in changes]
    return document_text({**plan_document(planned.lowered), **body})
