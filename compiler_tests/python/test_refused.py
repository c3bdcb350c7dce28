"""Wrong arguments and interrupts: what is refused, what it says, and what stays behind."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import forgedsl
from forgedsl.cli import run_lock
from forgedsl.cli.run_lock import claim, is_held
from forgedsl.errors import RunError
from forgedsl.python import results
from forgedsl.python.arguments import change_sampling, check_lengths, check_metrics, check_target
from forgedsl.python.groups import Buffer, Group, assembled
from forgedsl.python.interrupts import interrupts_wait
from forgedsl.python.session import Session
from forgedsl.python.work import NO_RESULT, Work, settle
from forgedsl_runtime.coalesce import Coalescer
from forgedsl_runtime.data_types import Batch, Sample

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo_math.forge"


@pytest.fixture(scope="module")
def pipeline() -> forgedsl.Pipeline:
    return forgedsl.load(GRPO, profile="cpu")


@pytest.mark.parametrize("given", [3, ["group=4"], {"group": 4}])
def test_overrides_of_set_are_texts(pipeline: forgedsl.Pipeline, given: Any) -> None:
    with pytest.raises(TypeError, match=r'p\.set takes texts, p\.set\("group=4"\), and keywords'):
        pipeline.set(given)


@pytest.mark.parametrize(
    ("count", "version", "told"),
    [
        ("x", 0, "`count` must be a whole number of at least 1, not 'x'"),
        (-1, 0, "`count` must be a whole number of at least 1, not -1"),
        (2, None, "`version` must be a whole number of at least 0, not None"),
    ],
)
def test_a_buffer_takes_numbers(count: Any, version: Any, told: str) -> None:
    with pytest.raises(forgedsl.PipelineError, match=f"^{told}$"):
        Buffer(4, 2, seed=0).draw(count, version)


@pytest.mark.parametrize("given", [3, [1]])
def test_a_buffer_takes_groups(given: Any) -> None:
    with pytest.raises(forgedsl.PipelineError, match=r"^`groups` must be a list of groups, as "):
        Buffer(4, 2, seed=0).put(given)


def test_finish_refuses_the_folder_of_a_session(
    pipeline: forgedsl.Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "session.json").write_text("{}")
    with pytest.raises(forgedsl.PipelineError, match=r"contains a Session of Python; name another"):
        pipeline.finish(tmp_path)
    with pytest.raises(TypeError, match="`folder` must be the path of a run folder, not 3"):
        pipeline.finish(3)  # type: ignore[arg-type]


def test_an_interrupt_waits_for_the_end_of_a_body_and_a_second_does_not() -> None:
    reached = []

    def interrupted(times: int) -> None:
        with interrupts_wait():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            reached.append(times)

    for times in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            interrupted(times)
    assert reached == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_pytorch_can_be_used_after_an_interrupt_while_it_is_imported() -> None:
    text = f"""
import signal, forgedsl
def interrupt(*_):
    signal.raise_signal(signal.SIGINT)
pipeline = forgedsl.load({str(GRPO)!r}, profile="cpu")
pipeline.plan()
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    pipeline.loss()
    print("no interrupt")
except KeyboardInterrupt:
    print("interrupted")
print(pipeline.loss().name)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stdout == "interrupted\ngrpo\n", done.stderr


def test_an_interrupt_while_a_run_starts_leaves_no_run_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, *values: Any, **named: Any) -> None:
            super().__init__(*values, **named)
            started.append(self)

    def interrupted(self: run_lock.Handover, pid: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(results.subprocess, "Popen", Started)
    monkeypatch.setattr(run_lock.Handover, "to", interrupted)
    claim(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        results.begin(tmp_path, ("nope.forge",), None)
    (process,) = started
    assert process.returncode is not None
    assert not is_held(tmp_path)


# ---- calls of a Session: results that nobody asks for


class Quiet:
    """Open services that never fail. `ended` has exit code, status and message of the end."""

    def __init__(self) -> None:
        self.ended: tuple[int, str, str] | None = None

    def check(self) -> None:
        pass

    async def close(self, code: int, status: str, message: str) -> None:
        self.ended = code, status, message


@pytest.fixture
def services() -> Quiet:
    return Quiet()


@pytest.fixture
def s(services: Quiet, tmp_path: Path) -> Iterator[Session]:
    opened = Session(None, lambda: tmp_path, lambda _: None, None)  # type: ignore[arg-type]
    opened._services = services  # type: ignore[assignment]
    opened._thread.start()
    yield opened
    if opened._services is not None:
        opened._close((0, "done", ""))


def raising(error: BaseException) -> Callable[[], Coroutine[Any, Any, None]]:
    async def call() -> None:
        raise error

    return call


async def seven() -> int:
    return 7


@pytest.mark.parametrize("named", [{"turn": "trainer"}, {"handle": "trainer"}])
def test_the_error_of_a_dropped_call_is_raised_by_the_next_of_its_handle(
    s: Session, named: dict[str, str]
) -> None:
    s.submit(raising(RunError("no gradients")), **named)
    s._unasked.wait()
    assert s.submit(seven, "other").result() == 7
    with pytest.raises(RunError, match=r"^no gradients$"):
        s.submit(seven, **named)
    assert s.submit(seven, **named).result() == 7


def test_a_call_in_the_queue_raises_what_was_dropped_before_it(s: Session) -> None:
    s.submit(lambda: asyncio.sleep(0.2), "trainer")
    s.submit(raising(RunError("no gradients")), "trainer")
    with pytest.raises(RunError, match=r"^no gradients$"):
        s.submit(seven, "trainer").result()


def test_an_error_is_raised_once_to_who_asks_for_it(s: Session) -> None:
    work = s.submit(raising(RunError("first")), "trainer")
    assert s.submit(seven, "trainer").result() == 7  # `work` can still be asked
    with pytest.raises(RunError, match=r"^first$"):
        work.result()

    async def cell() -> None:
        await s.submit(raising(RunError("second")), "trainer")

    with pytest.raises(RunError, match=r"^second$"):
        asyncio.run(cell())
    assert s.submit(seven, "trainer").result() == 7
    s.close()


def test_close_raises_the_error_of_a_call_that_nobody_asked(s: Session, services: Quiet) -> None:
    work = s.submit(raising(RunError("no gradients")), "trainer")
    with pytest.raises(RunError, match=r"^no gradients$"):
        s.close()
    assert services.ended == (5, "failed", "RunError: no gradients")
    assert work.done


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (ValueError("too few"), (5, "failed", "ValueError: too few")),
        (KeyboardInterrupt(), (130, "interrupted", "")),
    ],
)
def test_a_session_ends_with_the_cause(
    s: Session, services: Quiet, error: BaseException, ended: tuple[int, str, str]
) -> None:
    s.submit(raising(RunError("less important")), "trainer")
    s._unasked.wait()
    s.__exit__(type(error), error, None)
    assert services.ended == ended


def test_a_session_in_a_coroutine_ends_with_the_cause(s: Session, services: Quiet) -> None:
    s.submit(raising(RunError("no gradients")), "trainer")
    with pytest.raises(RunError, match=r"^no gradients$"):
        asyncio.run(s.__aexit__(None, None, None))
    assert services.ended == (5, "failed", "RunError: no gradients")


def test_close_waits_for_calls_that_were_handed_in(s: Session, services: Quiet) -> None:
    reached = []

    async def step() -> None:
        await asyncio.sleep(0.2)
        reached.append(1)

    for _ in range(3):
        s.submit(step, "trainer")
    s.close()
    assert (reached, services.ended) == ([1, 1, 1], (0, "done", ""))


def test_the_end_of_with_raises_the_error_of_a_call_that_it_waited_for(
    s: Session, services: Quiet
) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.2)
        raise RunError("no gradients")

    s.submit(fail, "trainer")
    with pytest.raises(RunError, match=r"^no gradients$"):
        asyncio.run(s.__aexit__(None, None, None))
    assert services.ended == (5, "failed", "RunError: no gradients")


def test_an_exception_cancels_calls_and_says_so(s: Session, services: Quiet) -> None:
    work = s.submit(lambda: asyncio.sleep(60), "trainer")
    s.submit(lambda: asyncio.sleep(60), "trainer")
    s.submit(lambda: asyncio.sleep(60), handle="generator")
    error = ValueError("too few")
    s.__exit__(ValueError, error, None)
    told = "cancelled 3 calls that had not ended (generator, trainer)"
    assert services.ended == (5, "failed", f"ValueError: too few; {told}")
    assert error.__notes__ == [told]
    with pytest.raises(RunError, match="closed before this call had ended, and cancelled it"):
        work.result()


def test_an_interrupt_while_close_waits_cancels_the_calls(s: Session, services: Quiet) -> None:
    s.submit(lambda: asyncio.sleep(60), "trainer")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            s.close()
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    told = "cancelled 1 call that had not ended (trainer)"
    assert services.ended == (130, "interrupted", told)
    assert raised.value.__notes__ == [told]


def test_a_cancelled_coroutine_ends_the_wait_of_its_session(s: Session, services: Quiet) -> None:
    s.submit(lambda: asyncio.sleep(60), "trainer")

    async def leave() -> None:
        await asyncio.wait_for(s.__aexit__(None, None, None), timeout=0.3)

    with pytest.raises(TimeoutError):
        asyncio.run(leave())
    told = "cancelled 1 call that had not ended (trainer)"
    assert services.ended == (130, "interrupted", told)


def test_settle_ends_calls_that_begin_because_others_end() -> None:
    async def hang(items: Sequence[int]) -> list[int]:
        await asyncio.sleep(60)
        return list(items)

    async def main() -> int:
        queue = Coalescer(hang, limit=1)
        waiting = [queue.post(number) for number in range(3)]
        await asyncio.sleep(0)
        await settle()
        assert len(waiting) == 3
        return len(asyncio.all_tasks()) - 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(main()) == 0
        gc.collect()


# ---- a Work is no result


@pytest.mark.parametrize(
    "use",
    [
        iter,
        len,
        float,
        lambda work: work[0],
        lambda work: work.loss,
        lambda work: f"{work:.3f}",
        lambda work: asyncio.run(each_of(work)),
    ],
)
def test_a_work_says_that_it_is_no_result(use: Callable[[Any], Any]) -> None:
    work: Work[int] = Work(Future())
    with pytest.raises((TypeError, AttributeError)) as raised:
        use(work)
    assert str(raised.value).endswith(NO_RESULT)


async def each_of(work: Any) -> None:
    async for _ in work:
        pass


def test_a_work_can_be_shown_and_tested() -> None:
    work: Work[int] = Work(Future())
    assert work
    assert f"{work}" == repr(work) == "<Work: not done yet; result() waits for it>"
    assert not hasattr(work, "_repr_html_")


def test_values_of_a_group_are_finite_and_no_call() -> None:
    group = Group(prompt=None, rollouts=[None, None])  # type: ignore[arg-type,list-item]
    group.ref = Work(Future())
    with pytest.raises(forgedsl.PipelineError, match=r"set group\.ref = \.\.\.\.result\(\)$"):
        assembled([group], {"ref": "ref"})
    for wrong in ([0.0, float("nan")], [[0.0], [float("inf")]]):
        group.adv = wrong
        with pytest.raises(forgedsl.PipelineError, match=r"^`adv` of a group has (nan|inf), with"):
            assembled([group], {"adv": "adv"})


# ---- arguments


def test_steps_of_log_go_up() -> None:
    assert check_metrics(0, {"loss": float("nan")}, None).keys() == {"loss"}
    assert check_metrics(2, {"loss": 1.0}, 1) == {"loss": 1.0}
    for step in (1, 0):
        with pytest.raises(forgedsl.PipelineError, match=r"^`step` must be more than 1, the step"):
            check_metrics(step, {}, 1)


def test_an_export_needs_an_empty_folder(tmp_path: Path) -> None:
    assert check_target(tmp_path) == tmp_path
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(forgedsl.PipelineError, match="is not empty; name a new folder for the wei"):
        check_target(tmp_path)


def test_stop_is_a_text_or_texts(pipeline: forgedsl.Pipeline) -> None:
    base = pipeline.plan().job.samplers["generator"].sampling
    assert change_sampling(base, {"stop": "</answer>"}).stop == ("</answer>",)
    assert change_sampling(base, {"stop": ["a", "b"]}).stop == ("a", "b")
    for wrong, told in (
        ({"stop": 3}, "a text or a list of texts"),
        ({"top_p": "x"}, "a number, n"),
    ):
        with pytest.raises(forgedsl.PipelineError, match=f"must be {told}"):
            change_sampling(base, wrong)


def test_a_long_sample_names_the_trainer() -> None:
    sample = Sample(token_ids=[1] * 9, num_prompt=4, mask=[True] * 5)
    with pytest.raises(forgedsl.PipelineError, match=r'set=\["actor\.batch\.seq_len=9"\]$'):
        check_lengths(Batch(samples=[sample]), 8, "actor")


def test_a_function_is_suggested_as_the_file_names_it() -> None:
    dapo = forgedsl.load(GRPO.parent / "dapo_math.forge", profile="cpu")
    with pytest.raises(forgedsl.PipelineError, match=r"did you mean `rl\.group_norm`"):
        dapo.function("group_norm")


def test_a_folder_in_use_is_stopped_as_python_does(tmp_path: Path) -> None:
    with forgedsl.surface.python():
        assert "stop it (`running.stop()`, or Ctrl-C in its terminal)" in run_lock._in_use(
            tmp_path, ""
        )
    assert "stop it (Ctrl-C there, or SIGTERM)" in run_lock._in_use(tmp_path, "")
