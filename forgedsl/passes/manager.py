"""Runs the passes; verifies, prints and times the product of each.

    Request --read--> source --PASSES--> Compiled (products, diagnostics, times)

If a product violates a rule, that is a bug of ours: InternalError names the pass and the rule. A
pass that reports errors ends the compilation; earlier products are kept.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Sequence

from forgedsl.api import Loaded
from forgedsl.diagnostics import Reporter
from forgedsl.errors import InternalError
from forgedsl.hir.modules import Loader
from forgedsl.passes.state import Request, State
from forgedsl.passes.table import PASSES, Pass, names
from forgedsl.records import dataclass, replace
from forgedsl.source import SourceFile
from forgedsl.syntax import read_source

__all__ = ["Compiled", "PassRecord", "Request", "compile_program"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
    """A pass that ran: its product, and the seconds that it and its verifier took."""

    name: str
    found: str
    seconds: float
    verified: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Result of a compilation. `made` lists the passes without errors. `state` is None if the file
    could not be read."""

    loaded: Loaded
    state: State | None
    made: tuple[PassRecord, ...] = ()


def compile_program(
    request: Request,
    *,
    until: str = "job",
    wanted: Collection[str] = (),
    print_after: Collection[str] = (),
    timings: bool = False,
) -> Compiled:
    """Run the passes up to `until`. `wanted` names on-demand passes to run.

    `print_after` prints the products of the named passes on stderr, `timings` the time of each
    pass. The variable FORGE_LOG does both for any command: FORGE_LOG=passes,hir forgec run ...
    """
    asked = set(os.environ.get("FORGE_LOG", "").split(","))
    print_after = {*print_after, *asked.intersection(names())}
    reporter = Reporter()
    name = str(request.path)
    source = read_source(request.path, name, reporter)
    if source is None:
        sources = {name: SourceFile(name, "")}
        return Compiled(loaded=Loaded(program=None, reporter=reporter, sources=sources), state=None)
    loader = Loader(reporter)
    loader.sources[name] = source
    state = State(request=request, loader=loader, source=source)
    made: list[PassRecord] = []
    for step in _chosen(until, {*wanted, *print_after}):
        done = _run(step, state)
        if done is None:
            break
        state, record = done
        if reporter.has_errors:
            break
        made.append(record)
        if step.name in print_after:
            print(
                f"# ---- after {step.name}: {record.found}\n\n{step.text(state)}", file=sys.stderr
            )
    if timings or "passes" in asked:
        print(timing_text(made), file=sys.stderr, end="")
    loaded = Loaded(program=state.hir, reporter=reporter, sources=loader.sources, file=state.ast)
    return Compiled(loaded=loaded, state=state, made=tuple(made))


def _chosen(until: str, wanted: Collection[str]) -> list[Pass]:
    last = next(i for i, step in enumerate(PASSES) if step.name == until)
    passes = [step for step in PASSES[: last + 1] if not step.on_demand or step.name in wanted]
    # syntax errors are reported by the parser, not by `tokens`
    return sorted(passes, key=lambda step: step.name != "ast")


def _run(step: Pass, state: State) -> tuple[State, PassRecord] | None:
    """Run a pass; return the state with its product, None if there is none."""
    begin = time.perf_counter()
    product = step.make(state)
    end = time.perf_counter()
    if product is None:
        return None
    after = replace(state, **{step.name: product})
    if not state.reporter.has_errors:
        verify(step, after)  # after errors the product may be incomplete
    verified = time.perf_counter() - end
    return after, PassRecord(
        name=step.name, found=step.found(after), seconds=end - begin, verified=verified
    )


def verify(step: Pass, state: State) -> None:
    """Raise InternalError with every rule that the product of a pass violates."""
    broken = [
        f"{rule.what}: {evidence}" for rule in step.rules for evidence in rule.violations(state)
    ]
    if broken:
        lines = "\n".join(f"  {line}" for line in broken[:8])
        raise InternalError(f"after pass {step.name}, {len(broken)} rules are broken\n{lines}")


def timing_text(made: Sequence[PassRecord]) -> str:
    """One line a pass, and the sum."""
    rows = [(m.name, m.seconds, m.verified, m.found) for m in made]
    rows.append(("all", sum(m.seconds for m in made), sum(m.verified for m in made), ""))
    lines = [f"{'pass':<8}{'ms':>9}{'verified':>11}"]
    lines += [f"{n:<8}{s * 1e3:>9.1f}{v * 1e3:>11.1f}   {f}".rstrip() for n, s, v, f in rows]
    return "\n".join(lines) + "\n"
