"""`lint --deep`: checks the data, rewards and models that the file refers to.

    D611 unusable-rows    rows that the run would leave out, or that would stop it
    D612 few-rows         fewer rows than one step draws
    D613 absent-separator a separator of `after` or `before` that no row contains
    D614 no-answer        targets that no answer can equal
    D615 repeated-rows    duplicate rows
    D616 results-learned  results of tools that a model is trained to write
    D617 answers-cut      demonstrations that are cut, so that their answers have no end
    D604 eval-overlap     prompts of an evaluation that are also trained on, compared by text
    D607 stop-tokens      stop strings that are end tokens in a local model's metadata
    X804 reward-loading   a Python reward that cannot be loaded
    X805 reward-call      a reward that fails in a trial call on a row
    X850 to X861          what rewards and environments give for constructed answers
    F103 unknown-setting  `engine.extra` that the installed vLLM does not have
    codes of the plan     for this host's hardware, under the profile it selects

The runtime's own code reads rows and rewards: the command line supplies a `DataChecks`, which gets
the job of the file as written and of each profile. Nothing is downloaded. User code runs only in a
subprocess with a time limit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Diagnostic, Label, Reporter, Severity, error, warning
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Decl, Deferred, Program, PythonFunction
from forgedsl.lint.call_results import CallResults
from forgedsl.lint.follow.programs import files_of
from forgedsl.lint.registry import CALLED, rule_of
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.rules import d607, d612, d665, x869
from forgedsl.lint.view import View, place
from forgedsl.lower.build import Lowered, lower_planned
from forgedsl.lower.job import Dataset, Job
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.plan.model_dims import check_family
from forgedsl.plan.plan import Plan
from forgedsl.records import dataclass, replace
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk
from forgedsl.types.flow import Role

SECONDS = 120
BY_CHANCE = 0.3
"""share of an eval's problems of reasoning-gym that training may have too: other seeds make some
problems again if a task has few"""
MORE_PROBLEMS = (
    "take more digits, terms or sizes: a task with few problems makes some of them twice"
)
REPEATED = 0.1
"""fraction of duplicate rows from which D615 is reported, and of cut ones for D617"""
LONGER = (
    "raise what limits them (`max_prompt_tokens`, `context`, `batch.seq_len`), or set `on_long = "
    "truncate`"
)
PLACE = re.compile(r"\(at [\w.+-]+\.forge:(\d+):(\d+)\)")
ENGINE = """
import dataclasses, json
from vllm.engine.arg_utils import AsyncEngineArgs
print("ARGS" + json.dumps([field.name for field in dataclasses.fields(AsyncEngineArgs)]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCheck:
    """Result of reading a dataset as a run does at its start. `rows` is None if they are streamed.
    `refused`: why the run would not start; `unread`: why no row was read; `unmeasured`: why no
    tokens were counted."""

    rows: int | None = None
    checked: int = 0
    bad: int = 0
    """number of malformed rows"""
    left_out: str = ""
    """`2 of 11 rows left out (bad row: 1, too long: 1)`, or """ ""
    examples: str = ""
    refused: str = ""
    first: str = ""
    """place (file and line) of the first usable row"""
    answers: tuple[Any, ...] = ()
    """rollouts of that row's prompt, for trial calls of rewards"""
    asked: Any = None
    """rows for calls of rewards (`runtime.probes.rewards.ProbeRows`)"""
    few: str = ""
    """message that there are fewer rows than one step draws, or """ ""
    absent: tuple[str, ...] = ()
    """separators that no row contains"""
    unparsed_target: str = ""
    """an example target, if `math_equal` cannot parse most targets"""
    repeated: int = 0
    near_duplicates: int = 0
    """number of rows that equal an earlier row except in case or spaces"""
    left: int = 0
    """number of rows that were left out"""
    cut: int = 0
    """number of chats or pairs that were cut to the trainer's rows"""
    results: int = 0
    """number of rows with results of tools in their messages"""
    unknown: int = 0
    """number of rows with text that the tokenizer has no tokens for"""
    unknown_text: str = ""
    """what they have, if they are many: `200 of 200 rows have text that ... does not know: "W"`"""
    prompts: frozenset[int] = frozenset()
    """hashes of the prompts, to find overlaps"""
    unread: str = ""
    unmeasured: str = ""


FILE_HELP = (
    "name what it reads in `files = [...]` of the reward, and open it by a path relative to "
    "`Path(__file__).parent`: the run has copies of both, in the same places"
)
DataChecks = Callable[
    [Lowered, frozenset[str]],
    tuple[Mapping[str, DatasetCheck], Mapping[str, str], Mapping[str, str]],
]
"""Called with a job, and with the names of its rewards with side effects, which it does not call.
Returns, by name: checks of datasets, errors of loading rewards, errors of calling rewards once."""

MakeCalls = Callable[[Lowered, frozenset[str]], CallResults]
"""Takes the same arguments, after a `DataChecks`, and calls rewards with constructed answers."""


def check(
    view: View, planned: tuple[Graph, Plan] | None, data: DataChecks, calls: MakeCalls | None,
    runs: Callable[[str], bool],
) -> Iterator[Diagnostic]:  # fmt: skip
    """Yield the findings of one view. `planned` is None if the view has mistakes, or no flow."""
    if view.folder is None:
        return
    for model in view.program.models.values():
        yield from check_family(model, view.folder, cache=True)
    yield from _stop_tokens(view, view.folder)
    yield from _engines(view.program)
    reporter = Reporter()
    lowered = None
    if planned is not None:
        lowered = lower_planned(
            view.program, *planned, reporter=reporter, sources=view.sources, base_dir=view.folder,
            allow=("P210",),
        )  # fmt: skip
    yield from (d for d in reporter if d.code != "P210")  # rule P210 reports it, as a warning
    if lowered is None:
        if view.program.datasets or view.program.rewards:
            why = "no flow uses them" if not view.program.flow else "fix the errors above first"
            _tell(view, f"data and rewards not checked: {why}")
        return
    rewards = view.program.rewards
    declared = {n for n, r in rewards.items() if {*r.settings["effects"].value} - {"random"}}
    seen = {r.reward.name for r in python_rewards(view) if {u.effect for u in r.uses} - {"random"}}
    checks, problems, failures = data(lowered, frozenset(declared | seen))
    absent = (*d665.check(view), *x869.check(view))
    columns = {d.span for d in absent if d.severity is Severity.ERROR}
    reported = {d.span for d in d612.check(view)}
    for name, check in checks.items():
        _say(view, lowered.job.datasets[name], name, check)
        at = _source(view, name)[1]
        if check.few and at not in reported:
            yield d612.finding(f"dataset {name}: {check.few}", at, help="draw fewer, or add rows")
        yield from _check_rows(view, lowered.job, name, check)
        found = _rows(view, name, check)
        if found is not None and found.span not in columns:  # a dataset and its eval share columns
            yield found
        if found is not None and found.related:
            columns.add(found.span)
    yield from _eval_overlap(view, lowered.job, checks)
    yield from _unusable(view, problems, failures)
    if calls is not None:
        apart = declared | seen | problems.keys() | failures.keys()
        view.calls = calls(lowered, frozenset(apart))
        yield from _from_calls(view, view.calls, runs)


def _unusable(
    view: View, problems: Mapping[str, str], failures: Mapping[str, str]
) -> Iterator[Diagnostic]:
    """Yield errors for rewards that cannot be loaded, and that fail when they are called."""
    rewards = view.program.rewards
    for name, problem in problems.items():
        variable = _unset_variable(view, name, problem)
        if variable:
            _tell(view, f"reward {name} was not loaded: {variable} is not set here")
            continue
        yield error(
            "X804",
            "reward-loading",
            problem,
            place_of(rewards[name], view),
            help=FILE_HELP
            if "FileNotFoundError" in problem or "No such file" in problem
            else "the workers import it in the same way, with the packages installed there",
        )
    for name, failure in failures.items():
        yield error("X805", "reward-call", failure, place_of(rewards[name], view))


def _unset_variable(view: View, name: str, problem: str) -> str:
    """Return the environment variable without which a reward cannot be loaded, "" if that is not
    the reason. It may be set only where the run is."""
    found = re.search(r"KeyError: '(\w+)'$", problem)
    body = view.program.rewards[name].body
    if found is None or not isinstance(body, PythonFunction):
        return ""
    files = files_of(view)
    texts = [file.text for path in files.imported(body.module) if (file := files.read(path))]
    read = re.compile(rf"\benviron\[[\"']{found[1]}[\"']\]")
    return found[1] if any(read.search(text) for text in texts) else ""


def _from_calls(
    view: View, calls: CallResults, runs: Callable[[str], bool]
) -> Iterator[Diagnostic]:
    """Yield what follows from calls of rewards and games, and record which calls were not made."""
    for name, called in calls.rewards.items():
        if called.note:
            _tell(view, f"some calls of reward {name} were not made: {called.note}")
    for name, played in calls.environments.items():
        if played.note:
            _tell(view, f"some games of environment {name} were not played: {played.note}")
    for code in filter(runs, CALLED):
        yield from rule_of(code).check(view)


# ---- rows


def _say(view: View, dataset: Dataset, name: str, check: DatasetCheck) -> None:
    """Add lines to the report of --deep: how many rows were checked, or why none were."""
    if check.unread:
        _tell(view, f"rows of {name} not checked: {check.unread}")
    elif check.checked:
        part = "" if check.checked == check.rows else f" of {check.rows:,}"
        rows = "row" if check.checked == check.rows == 1 else "rows"
        why = " (time limit)" if part and not check.refused else ""
        _tell(view, f"checked {check.checked:,}{part} {rows} of {name}{why}")
        if check.unmeasured:
            whose = f"the tokenizer of {dataset.tokenizer}"
            _tell(view, f"lengths of {name} not checked: {whose}: {check.unmeasured}")


def _tell(view: View, text: str) -> None:
    view.shared.data_reports.setdefault(text, []).append(view.program.profile or "")


def _rows(view: View, name: str, check: DatasetCheck) -> Diagnostic | None:
    """Return an error if the run would not start, else a warning about rows it would leave out."""
    if not (check.refused or check.left_out):
        return None
    dataset, at = _source(view, name)
    text = check.refused or f"dataset {name}: {check.left_out}{check.examples}"
    message, *examples = text.split("\n")
    span = _written(view, dataset, examples[0] if examples else "") or at
    many = 2 * check.left > check.checked
    severity = Severity.WARNING if check.bad or many else Severity.INFO
    return Diagnostic(
        code="D611",
        name="unusable-rows",
        severity=Severity.ERROR if check.refused else severity,
        message=message,
        span=span,
        related=(Label(text="its rows", span=at),) if span != at else (),
        notes=tuple(line.strip() for line in examples),
        help=_help(check, _close(view, dataset, examples)),
    )


def _source(view: View, name: str) -> tuple[Decl, Span]:
    """Return a dataset and the span of its source. `sums.test` is the dataset of the eval
    `test`."""
    own = view.program.evals.get(name.rpartition(".")[2])
    dataset = view.program.datasets[name.partition(".")[0]]
    source = own.settings["source"] if own is not None else dataset.settings["source"]
    if source.value is None:
        source = dataset.settings["source"]
    return dataset, place(source, dataset)


def _help(check: DatasetCheck, close: str) -> str:
    if check.refused:
        return close or (LONGER if "too long" in check.refused else "")
    if 2 * check.left > check.checked and "too long" in check.left_out:
        return LONGER
    rest = "; more than `max_bad_rows` would end it" if check.bad else ""
    return close or f"the run leaves them out{rest}"


def _written(view: View, dataset: Decl, example: str) -> Span | None:
    """Return the span of the expression that a message about a bad row refers to; for a missing
    column, that of its use."""
    found = PLACE.search(example)
    source = view.sources.get(dataset.span.file)
    if found is None or source is None:
        return None
    start = source.line_starts[int(found[1]) - 1] + int(found[2]) - 1
    lacks = _lacking(example)
    for value in (s.value for s in dataset.settings.values()):
        if not isinstance(value, Deferred) or not value.expr.span.start <= start:
            continue
        if start < value.expr.span.end:
            named = (node.span for keys, node in reads(value.expr, "row") if lacks in keys)
            return next(named, value.expr.span)
    reward = next((n for n, r in view.program.rewards.items() if f"reward {n} (at" in example), "")
    return view.program.spans.get(reward)


def _lacking(example: str) -> str:
    """Return the missing column that a message about a bad row names."""
    return example.partition("no column `")[2].partition("`")[0]


def _close(view: View, dataset: Decl, examples: list[str]) -> str:
    """Return the help for a missing column: a similar name, or the columns there are."""
    lacks = _lacking(examples[0]) if examples else ""
    known = examples[0].partition("its columns are ")[2].partition(" (")[0] if lacks else ""
    listed = ", ".join(f"`row.{name}`" for name in known.split(", ")) if known else ""
    close = did_you_mean(nearest(lacks, known.split(", "))) if lacks else ""
    return close or (f"read a column that it has: {listed}" if listed else "")


def _stop_tokens(view: View, folder: Path) -> Iterator[Diagnostic]:
    """D607 with the end tokens of a local model's generation_config.json."""
    for service in view.samplers():
        model = view.program.models[service.ctor_args[0].name]
        source = model.settings["source"].value
        if "path" in getattr(source, "args", {}):
            yield from d607.never(service, *end_tokens(folder / str(source.args["path"])))


def end_tokens(folder: Path) -> tuple[tuple[str, ...], set[str]]:
    """Return the texts of a model's end tokens and of all its special tokens, read from its
    files."""
    generation, tokenizer = folder / "generation_config.json", folder / "tokenizer_config.json"
    if not generation.is_file() or not tokenizer.is_file():
        return (), set()
    found = json.loads(generation.read_text("utf-8")).get("eos_token_id", [])
    ids = found if isinstance(found, list) else [found]
    added = json.loads(tokenizer.read_text("utf-8")).get("added_tokens_decoder", {})
    special = {token["content"] for token in added.values() if token.get("special", True)}
    return tuple(added[str(i)]["content"] for i in ids if str(i) in added), special


# ---- findings about all rows together


def _check_rows(view: View, job: Job, name: str, check: DatasetCheck) -> Iterator[Diagnostic]:
    dataset, at = _source(view, name)
    for text in check.absent if "." not in name else ():
        message = f"no row of `{name}` has `{text}` ({check.checked:,} were checked)"
        where = _written_text(dataset, text)
        yield warning("D613", "absent-separator", message, where or at,
                      help="rows without the separator keep their whole text")  # fmt: skip
    if check.unparsed_target:
        yield warning("D614", "no-answer", f"most targets of `{name}` are no answers that "
                      f"`math_equal` can read: {check.unparsed_target[:60]!r}",
                      place(dataset.settings["target"], dataset),
                      help="take the number or the formula alone: `after(row.answer, \"#### \")`",
                      )  # fmt: skip
    learn = dataset.settings["learn"]
    if check.results and str(getattr(learn.value, "name", learn.value)) == "all":
        message = (
            f"{check.results:,} of {check.checked:,} rows of `{name}` have results of tools, and "
            "the model learns to write them"
        )
        yield warning("D616", "results-learned", message, place(learn, dataset),
                      help="`learn = assistant_turns`")  # fmt: skip
    if check.unknown_text:
        yield warning("D669", "unknown-text", f"dataset `{name}`: {check.unknown_text}", at,
                      help="take a model whose tokenizer knows it, or rows without such text",
                      )  # fmt: skip
    if check.cut > REPEATED * check.checked and dataset.settings["chat"].value is not None:
        message = (
            f"{check.cut:,} of {check.checked:,} chats of `{name}` are cut at their end, so the "
            "model does not learn to stop"
        )
        yield warning("D617", "answers-cut", message, place(dataset.settings["on_long"], dataset),
                      help="a longer `batch.seq_len`, or `on_long = drop`")  # fmt: skip
    repeated, near = check.repeated + check.near_duplicates, check.near_duplicates
    if repeated > REPEATED * check.checked:
        message = f"{repeated:,} of {check.checked:,} rows of `{name}` repeat an earlier row"
        message += f", {near:,} of them in other case or spaces" if near else ""
        yield Diagnostic(
            code="D615", name="repeated-rows", severity=Severity.INFO, message=message, span=at,
            help=MORE_PROBLEMS if _is_generated(job, name)
            else "remove the copies; keep those that shall be drawn more often than other rows",
        )  # fmt: skip


def _is_generated(job: Job, name: str) -> bool:
    """True if a task of reasoning-gym makes the rows of a dataset."""
    return job.datasets[name].source.kind == REASONING_GYM.name


def _written_text(dataset: Decl, text: str) -> Span | None:
    """Return the span of a string, such as a separator, in the expressions of a dataset."""
    values = (s.value for s in dataset.settings.values())
    found = (n for v in values if isinstance(v, Deferred) for n in walk(v.expr))
    return next((n.span for n in found if isinstance(n, ast.String) and n.value == text), None)


def _eval_overlap(view: View, job: Job, checks: Mapping[str, DatasetCheck]) -> Iterator[Diagnostic]:
    """Yield D604 for prompts of evaluations that are also trained on, from whatever source."""
    trained = {node.target for node in job.nodes if Role.PROMPTS in node.roles} & checks.keys()
    for name, evaluation in job.evals.items():
        mine = checks.get(evaluation.dataset, DatasetCheck()).prompts
        for other in sorted(trained - {evaluation.dataset}):
            both = len(mine & checks[other].prompts)
            if both:
                decl = view.program.evals[name]
                trained_on = f"{both:,} of {len(mine):,} prompts of `{name}` are trained on"
                message = f"{trained_on} as `{other}`"
                by_chance = all(_is_generated(job, each) for each in (evaluation.dataset, other))
                is_known = by_chance and both <= BY_CHANCE * len(mine)
                found = warning("D604", "eval-overlap", message, decl.name_span,
                                related=(Label(text="trained on", span=_source(view, other)[1]),),
                                help=MORE_PROBLEMS if by_chance
                                else "leave them out of one of the two")  # fmt: skip
                yield replace(found, severity=Severity.INFO) if is_known else found


# ---- the engine


def _run(command: list[str]) -> tuple[str, str]:
    """Run a subprocess; return (output, problem)."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "", f"it took more than {SECONDS} s"
    lines = done.stderr.strip().splitlines()
    return done.stdout, (lines[-1] if lines else "it ended the process") if done.returncode else ""


def _engines(program: Program) -> Iterator[Diagnostic]:
    """Check `engine.extra` against the arguments of the installed vLLM, if there is one."""
    for service in program.services.values():
        extra = {k[13:]: v for k, v in service.settings.items() if k.startswith("engine.extra.")}
        known = _engine_arguments() if extra else ()
        for name, value in extra.items():
            if known and name not in known:
                yield error(
                    "F103",
                    "unknown-setting",
                    f"the installed vLLM has no argument `{name}`",
                    value.place or place(value, service),
                    help=did_you_mean(nearest(name, known)),
                )


@cache
def _engine_arguments() -> tuple[str, ...]:
    output, _ = _run([sys.executable, "-c", ENGINE])
    line = next((line for line in output.splitlines() if line.startswith("ARGS")), "ARGS[]")
    return tuple(json.loads(line[4:]))
