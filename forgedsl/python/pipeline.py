"""`forgedsl.load`: a .forge file as an object that is checked, planned, drawn and run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl import api
from forgedsl.cli.waiting import waiting
from forgedsl.errors import expect
from forgedsl.python.arguments import as_override, check_is
from forgedsl.python.functions import FunctionOfLists
from forgedsl.python.interrupts import interrupts_wait
from forgedsl.python.pages import Findings, Picture, PipelineError, PlanPage, error_of
from forgedsl.python.results import Running, RunResult, begin
from forgedsl.python.speaking import all_speak_python, speaks_python
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.cli.planning import Planned
    from forgedsl.ir.program import Program
    from forgedsl.python.session import Session
    from forgedsl.sizes.hosts import Host
    from forgedsl_runtime.losses import LossFunction

HERE = "here"


@speaks_python
def load(
    path: str | Path,
    *,
    profile: str = "auto",
    host: str = HERE,
    set: Iterable[str] = (),
    set_files: Iterable[str | Path] = (),
    **overrides: object,
) -> Pipeline:
    """Read the .forge file at `path`. Overrides are as on the command line: `group=4` as a keyword
    for parameters, `set=["trainer.optimizer.lr=1e-5"]` for any setting. `profile` is "auto",
    "none" or a name; `host` is "here" or a description such as "8xH200", to plan for another.

    Example:
        pipeline = forgedsl.load("sums.forge", group=4, set=["schedule.steps=10"])

    Raises:
        PipelineError: the file cannot be read or has mistakes; it prints as `forgec lint` does.
    """
    expect(path, str | PathLike, "`path` must be the path of a .forge file")
    if "\n" in str(path):
        raise PipelineError("`path` is a text: write it to a file, and load the path of that")
    expect(host, str, '`host` must be "here", or a description such as "8xH200"')
    texts = (*api.listed(set, str, 'set=["group=4"]'), *map(as_override, overrides.items()))
    files = tuple(
        Path(each) for each in api.listed(set_files, str | PathLike, 'set_files=["a.toml"]')
    )
    pipeline = Pipeline(Path(path), profile=profile, host=host, overrides=texts, set_files=files)
    pipeline.program  # noqa: B018 - a file with mistakes is refused here
    return pipeline


@contextmanager
def as_pipeline_error() -> Iterator[None]:
    """Turn UsageError and ConfigError into PipelineError."""
    from forgedsl.cli.overrides import UsageError
    from forgedsl.lint.config import ConfigError

    try:
        yield
    except (UsageError, ConfigError) as error:
        raise PipelineError(str(error)) from error


@all_speak_python
class Pipeline:
    """A .forge file under a profile and overrides. Made by `forgedsl.load`."""

    def __init__(
        self,
        path: Path,
        *,
        profile: str = "auto",
        host: str = HERE,
        overrides: tuple[str, ...] = (),
        set_files: tuple[Path, ...] = (),
    ) -> None:
        self.path = path
        self.profile = profile
        self.host = host
        self.overrides = overrides
        self.set_files = set_files
        self._loaded: api.Loaded | None = None
        self._planned: Planned | None = None

    @property
    def program(self) -> Program:
        """The resolved program: parameters, models, services, functions."""
        if self._loaded is None:
            with interrupts_wait():
                self._loaded = api.load(
                    self.path, profile=self.profile, overrides=self.overrides,
                    set_files=self.set_files, host=self._host(),
                )  # fmt: skip
        loaded = self._loaded
        if loaded.program is None or loaded.reporter.has_errors:
            raise error_of(tuple(loaded.reporter), loaded.sources)
        return loaded.program

    def set(self, *overrides: str, **named: object) -> Pipeline:
        """The same file with more overrides.

        Example:
            wide = pipeline.set("trainer.optimizer.lr=1e-5", group=16)
        """
        for each in overrides:
            wanted = 'p.set takes texts, p.set("group=4"), and keywords, p.set(group=4)'
            expect(each, str, wanted)
        return load(
            self.path, profile=self.profile, host=self.host, set_files=self.set_files,
            set=(*self.overrides, *overrides), **named,
        )  # fmt: skip

    def lint(self) -> Findings:
        """Check the file as `forgec lint` does: as written and under each profile, or under the
        profile that was asked for."""
        from forgedsl.lint.config import checked
        from forgedsl.lint.config import load as configuration
        from forgedsl.lint.engine import lint_file

        with as_pipeline_error():
            config = checked(configuration(self.path))
        with interrupts_wait():
            found = lint_file(
                self.path, profile=None if self.profile == "auto" else self.profile, config=config,
                overrides=self.overrides, set_files=self.set_files,
            )  # fmt: skip
        return Findings(found.diagnostics, found.sources)

    def plan(self) -> PlanPage:
        """Plan a run: processes, memory, queues, policy age and cost.

        Raises:
            PipelineError: the file has errors, or the plan does not fit the host.
        """
        if self._planned is None:
            with interrupts_wait():
                from forgedsl.cli.planning import plan_file

                self._planned = plan_file(
                    self.path, profile=self.profile, overrides=self.overrides,
                    set_files=self.set_files, host=self._host(),
                )  # fmt: skip
        planned = self._planned
        if planned.lowered is None:
            raise error_of(tuple(planned.loaded.reporter), planned.loaded.sources)
        return PlanPage(planned)

    def graph(self, view: str = "dataflow") -> Picture:
        """The pipeline drawn: its dataflow, mesh, schedule or passes."""
        from forgedsl.cli.graph import View, drawing_from

        known = [each.value for each in View]
        if view not in known:
            raise PipelineError(f"there is no view {view!r}; it is one of {', '.join(known)}")
        self.plan()
        assert self._planned is not None
        state, loaded = self._planned.state, self._planned.loaded
        assert state is not None
        assert state.hir is not None
        assert state.graph is not None
        assert state.plan is not None
        return Picture(drawing_from(loaded, state.hir, state.graph, state.plan), view)

    def loss(self, name: str | None = None) -> LossFunction:
        """A loss of the job as a function of tensors; without a name, the only one."""
        losses = self.plan().job.losses
        if name is None and len(losses) == 1:
            (name,) = losses
        if name is None:
            raise PipelineError(f"name one of the losses: {', '.join(losses) or 'there are none'}")
        spec = losses[_check_name(name, losses, "loss")]
        with waiting("loading PyTorch"), interrupts_wait():
            from forgedsl_runtime.losses import LossFunction

        return LossFunction.from_job(spec)

    def start(self, folder: str | Path | None = None) -> Running:
        """Begin a run in the background, in a process of its own, which goes on when this one
        ends. The folder is `runs/NAME-TIME` unless it is given."""
        run_dir = self._prepared(folder)
        return begin(run_dir, (str(run_dir / "job.json"), "--run-dir", str(run_dir)), self)

    def run(self, folder: str | Path | None = None, *, quiet: bool = False) -> RunResult:
        """Run to the end; progress goes to standard error unless `quiet`. Ctrl-C, or an
        interrupted cell, saves a checkpoint and ends the run.

        Raises:
            PipelineError, LaunchError, RunError, GuardError: it could not start, or it failed.
        """
        return self.start(folder).follow(quiet=quiet)

    def finish(self, folder: str | Path, *, quiet: bool = False) -> RunResult:
        """Run to the end in `folder`, whatever an earlier call has left there: a run that is done
        stays, one that still runs is waited for, one with a checkpoint is resumed, and any other
        begins anew in an emptied folder. For searches that may be killed.

        Raises:
            PipelineError: the folder holds another job.
            LaunchError, RunError, GuardError: as `run`.
        """
        from forgedsl.cli.planning import read_job
        from forgedsl.cli.sweep_points import ENDED
        from forgedsl.cli.sweep_runs import LOOK_SECONDS, look
        from forgedsl.runs.checkpoints import SESSION

        expect(folder, str | PathLike, "`folder` must be the path of a run folder")
        folder = Path(folder)
        if (folder / SESSION).exists():
            raise PipelineError(f"{folder} contains a Session of Python; name another folder")
        job = self.plan().job
        if (folder / "job.json").is_file():
            if read_job(folder / "job.json").content_hash != job.content_hash:
                raise PipelineError(
                    f"{folder} holds a run of another job; compare them by `forgec diff {folder} "
                    f"{self.path}`, or name another folder"
                )
        elif folder.exists() and any(folder.iterdir()):
            raise PipelineError(f"{folder} is no run folder, and is not empty")
        steps = job.schedule.steps
        while (state := look(folder, steps)[0]) == "running":
            time.sleep(LOOK_SECONDS)
        if state in ENDED:
            return RunResult(folder, self)
        if state == "checkpoint":
            return RunResult(folder, self).resume(quiet=quiet)
        if folder.exists():
            shutil.rmtree(folder)
        return self.run(folder, quiet=quiet)

    def session(self, folder: str | Path | None = None) -> Session:
        """The services of this pipeline for a loop of your own, in place of the file's flow.

        Example:
            with pipeline.session() as s:
                groups = s["generator"].sample(s["sums"].draw(8), n=4).result()
        """
        from forgedsl.cli.run_lock import release
        from forgedsl.python.session import Session

        wanted = self._checked(folder)
        return Session(self.plan().job, lambda: self._prepared(folder), release, wanted)

    def function(self, name: str) -> FunctionOfLists:
        """Return an advantage or filter that the flow calls, as a function of lists of numbers. One
        of a module is named as in the file: `rl.mean_baseline`, or `rl_mean_baseline`.

        Example:
            advantage = pipeline.function("group_norm")
            advantage([0.0, 1.0])
        """
        job = self.plan().job
        targets = [node.target for node in job.nodes if Role.COMPUTES in node.roles]
        by_name = {target.partition("_")[2]: target for target in targets}  # advantage_group_norm
        functions = self.program.functions
        in_file = {each: by_name[plain] for each in functions if (plain := _plain(each)) in by_name}
        check_is(name, str, "the name of a function is a text")
        declared = next((each for each in in_file if _plain(each) == _plain(name)), name)
        target = in_file[_check_name(declared, in_file, "function")]
        with waiting("loading PyTorch"), interrupts_wait():
            from forgedsl_runtime.modules import load_module
            from forgedsl_runtime.tensor_calls import call_on_tensors

        found = getattr(load_module("program", job.program), target)
        return FunctionOfLists(declared, found, call_on_tensors, functions[declared])

    def _checked(self, folder: str | Path | None) -> Path | None:
        """The path of a run folder. Nothing is written."""
        from forgedsl.cli.running import check_run_dir

        if self.host != HERE:
            raise PipelineError(
                f"this pipeline was planned for {self.host}: load it without `host` to run it here"
            )
        expect(folder, str | PathLike | None, "`folder` must be the path of a run folder")
        wanted = None if folder is None else Path(folder)
        with as_pipeline_error():
            check_run_dir(wanted)
        return wanted

    def _prepared(self, folder: str | Path | None) -> Path:
        """A run folder of this process with all that the job reads."""
        from forgedsl.cli.run import prepare
        from forgedsl.cli.run_lock import release
        from forgedsl.cli.running import RunOptions, new_run_dir, write_run_dir

        wanted = self._checked(folder)
        self.plan()
        with as_pipeline_error():
            request = RunOptions(
                file=self.path, overrides=self.overrides, profile=self.profile, run_dir=wanted,
                resume=None, quiet=False, set_files=self.set_files,
            )  # fmt: skip
            prepared = prepare(request, self.path)
            if isinstance(prepared, int):
                raise PipelineError(
                    f"{self.path} has changed and has errors now: fix them and load it again"
                )
            run_dir = new_run_dir(wanted, prepared.job.name)
            try:
                write_run_dir(run_dir, prepared)
            except BaseException:
                release(run_dir)
                raise
        return run_dir

    def __repr__(self) -> str:
        """`<Pipeline sums.forge: profile cpu, group=8, trainer.optimizer.lr=1e-5>`."""
        profile = self.program.profile
        changed = {text.partition("=")[0]: text for text in self.overrides}  # the last one counts
        said = [
            f"profile {profile}" if profile else "no profile",
            *([f"host {self.host}"] if self.host != HERE else []),
            *map(str, self.set_files), *changed.values(),
        ]  # fmt: skip
        return f"<Pipeline {self.path}: {', '.join(said)}>"

    def _repr_html_(self) -> str:
        return self.graph()._repr_html_()

    def _host(self) -> Host:
        from forgedsl.cli.host import find_host

        with as_pipeline_error():
            return find_host(self.host)


def _plain(name: str) -> str:
    """`rl.group_norm` as in the generated code: `rl_group_norm`."""
    return name.replace(".", "_")


def _check_name(name: str, names: Mapping[str, object], kind: str) -> str:
    """Return `name` if it is in `names`, else raise a PipelineError with similar names."""
    check_is(name, str, f"the name of a {kind} is a text")
    if name in names:
        return name
    from forgedsl.mistakes.suggest import did_you_mean, nearest

    close = did_you_mean(nearest(name, names))
    known = ", ".join(names) or "none"
    raise PipelineError(f"there is no {kind} {name!r}; {close or f'there are {known}'}")
