"""Calls user code once on a row, while the processes of services start.

Job, a DatasetCheck per dataset --> one turn in each environment, one call of each reward
                                    `-> errors, shown by a dry run and at the start of a run
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli.data_checks import SECONDS, check_datasets, check_rewards, played_on
from forgedsl.errors import LaunchError, RunError
from forgedsl.records import dataclass
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forgedsl.lint.deep import DatasetCheck
    from forgedsl.lower.job import Job
    from forgedsl_runtime.agents.process import AgentProcess
    from forgedsl_runtime.data_types import Prompt
    from forgedsl_runtime.environments.process import EnvironmentProcess
    from forgedsl_runtime.environments.worker import Reply

ANSWER = "The answer is 42."
NEVER_WORKS = (
    "NameError", "UnboundLocalError", "AttributeError", "ImportError", "ModuleNotFoundError",
    "ConnectionError",
)  # fmt: skip
"""errors that would occur for every row"""
NEVER_STARTS = re.compile(r"\bpip install\b|\(its program ended with exit code (2|126|127)\)$")
"""ends of programs that would be the same for every row: a package is missing, or the command is
wrong (2: argparse and most commands; 126 and 127: shells)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Result of one turn in an environment. `unseen`: the prompt does not show its tools."""

    problem: str = ""
    cause: str = ""
    unseen: str = ""


def try_once(job: Job, folder: Path) -> list[tuple[str, str]]:
    """Call rewards in Python, judges behind endpoints and environments once on the first row.
    `folder` contains the files of the job. Returns what the user should know, as events: `warning`
    for an error that may be due to the row, or `note`, and the text.

    Raises:
        LaunchError: one of them would fail for every row.
    """
    mine = [name for name, reward in job.rewards.items() if reward.is_alone]
    if not mine and not job.environments:
        return []
    drawn = {node.target for node in job.nodes if Role.PROMPTS in node.roles}
    checks = check_datasets(job, folder, sorted(drawn), offline=False)
    tried = check_rewards(job, folder, mine, checks)
    played = play_environments(job, folder, checks)
    wrong = [(t.unloaded or t.failed, bool(t.unloaded), t.cause) for t in tried.values()]
    wrong += [(p.problem, not p.cause, p.cause) for p in played.values()]
    fatal = [problem for problem, sure, cause in wrong if problem and (sure or _never_works(cause))]
    if fatal:
        raise LaunchError("\n".join(fatal))
    told = [("warning", problem) for problem, *_ in wrong if problem]
    return told + [("note", each.unseen) for each in played.values() if each.unseen]


def _never_works(cause: str) -> bool:
    return cause.startswith(NEVER_WORKS) or NEVER_STARTS.search(cause) is not None


def load_environments(job: Job, folder: Path) -> dict[str, str]:
    """Load the classes of environments and agents as a run does, without playing; return what is
    wrong with each, "" if nothing is. Programs are left out."""
    from forgedsl_runtime.agents.process import AgentProcess
    from forgedsl_runtime.environments.process import EnvironmentProcess
    from forgedsl_runtime.environments.worker import ServedEnvironment

    async def load() -> dict[str, str]:
        found = {}
        for name, spec in job.environments.items():
            if spec.program is not None:
                continue
            served = ServedEnvironment(name=name, environment=spec, job_dir=str(folder))
            process = AgentProcess(served) if spec.agent else EnvironmentProcess(served)
            try:
                await process.start(SECONDS)
                found[name] = ""
            except LaunchError as error:
                found[name] = str(error)
            finally:
                process.close()
        return found

    return asyncio.run(load())


def play_environments(
    job: Job, folder: Path, checks: Mapping[str, DatasetCheck]
) -> dict[str, Played]:
    """Load environments as a run does, and play one turn of each on the first row."""
    from forgedsl_runtime.agents.process import AgentProcess
    from forgedsl_runtime.environments.process import EnvironmentProcess
    from forgedsl_runtime.environments.worker import ServedEnvironment

    async def play() -> dict[str, Played]:
        found = {}
        for name, spec in job.environments.items():
            served = ServedEnvironment(name=name, environment=spec, job_dir=str(folder))
            process = AgentProcess(served) if spec.agent else EnvironmentProcess(served)
            try:
                await process.start(SECONDS)
                if isinstance(process, AgentProcess):
                    found[name] = await _run_to_first_request(process, name, job, folder, checks)
                else:
                    found[name] = await _play_one_turn(process, name, job, folder, checks)
            except LaunchError as error:
                found[name] = Played(problem=str(error))
            finally:
                process.close()
        return found

    return asyncio.run(play())


async def _play_one_turn(
    process: EnvironmentProcess,
    name: str,
    job: Job,
    folder: Path,
    checks: Mapping[str, DatasetCheck],
) -> Played:
    from forgedsl.environment import Task, Turn
    from forgedsl_runtime.environments.worker import Request

    dataset = played_on(job, name)
    check = checks.get(dataset)
    if check is None or not check.answers:
        return Played()
    prompt = check.answers[0].prompt
    messages = None if prompt.messages is None else tuple(prompt.messages)
    task = Task(text=prompt.text, messages=messages, target=prompt.target)
    seconds = job.environments[name].tool_timeout
    begun = await process.ask(Request(key="0", op="reset", seconds=seconds, task=task))
    if begun.error:
        return _failed(name, "reset", check, begun)
    tools_reply = await process.ask(Request(key="0", op="tools", seconds=SECONDS))
    turn = Request(key="0", op="step", seconds=seconds, turn=Turn(text=ANSWER))
    answered = await process.ask(turn)
    if answered.error and not answered.late:
        return _failed(name, "step", check, answered)
    await process.ask(Request(key="0", op="close", seconds=seconds))
    return _check_tools_in_prompt(
        job, folder, name, dataset, prompt, begun.value.observation, tools_reply
    )


async def _run_to_first_request(
    process: AgentProcess, name: str, job: Job, folder: Path, checks: Mapping[str, DatasetCheck]
) -> Played:
    """Run an agent on a row up to its first request to the policy, which is not answered."""
    import pickle

    from forgedsl.environment import Task
    from forgedsl.lower.job import Sampling
    from forgedsl_runtime.agents.session import Terms
    from forgedsl_runtime.data.reader import load_tokenizer
    from forgedsl_runtime.environments.bridge import Bridge
    from forgedsl_runtime.environments.connection import PoolRequest, bridge_request

    dataset = played_on(job, name)
    check = checks.get(dataset)
    if check is None or not check.answers:
        return Played()
    prompt, model = check.answers[0].prompt, job.datasets[dataset].tokenizer
    bridge = Bridge(load_tokenizer(job, model, folder, folder))
    if not bridge.reads_chats:
        why = "sends messages, and the model has no chat template: set its `chat_template`"
        return Played(problem=f"agent {name} {why}")
    messages = None if prompt.messages is None else tuple(prompt.messages)
    task = Task(text=prompt.text, messages=messages, target=prompt.target)
    terms = Terms(
        model=model, sampling=Sampling(max_tokens=1), max_row_tokens=2**20, rewrites=False
    )
    await process.endpoint.start()
    await process.answer(bridge_request(bridge, "0", pickle.dumps(bridge)))
    await process.answer(PoolRequest("run", "0", (task, terms), 0, "0"))
    try:
        async with asyncio.timeout(SECONDS):
            (events, _), _ = await process.answer(PoolRequest("events", "0"))
    except TimeoutError:
        late = f"agent {name} sent no request to the policy within {SECONDS:g} s"
        return Played(problem=late, cause="late")
    finally:
        process.close()  # before the endpoint, so that a program cannot print that it was left
        await process.endpoint.close()
    event, reply = events[-1]
    if event == "ask":
        return Played()
    if reply.error:
        return _failed(name, "run", check, reply)
    silent = f"agent {name} sent no request to the policy for {check.first}"
    return Played(problem=silent, cause="silent")


def _failed(name: str, method: str, check: DatasetCheck, reply: Reply) -> Played:
    text = f"environment {name} fails in `{method}` for {check.first}: {reply.error}"
    return Played(problem=text, cause=reply.error)


def _check_tools_in_prompt(
    job: Job,
    folder: Path,
    name: str,
    dataset: str,
    prompt: Prompt,
    start: object,
    tools_reply: Reply,
) -> Played:
    """Return a result whose `unseen` says which tools the first prompt does not name."""
    from forgedsl_runtime.data.reader import load_tokenizer
    from forgedsl_runtime.environments.bridge import Bridge

    tools = [str(tool["function"]["name"]) for tool in tools_reply.value or ()]
    model = job.datasets[dataset].tokenizer
    if tools_reply.error or not tools:
        return Played()
    bridge = Bridge(load_tokenizer(job, model, folder, folder), tools_reply.value)
    try:
        text = bridge.first_prompt(prompt, start, job.environments[name].max_observation).text  # type: ignore[arg-type]
    except RunError as error:
        return Played(problem=f"environment {name}: {error}")
    missing = [tool for tool in tools if tool not in text]
    if not missing:
        return Played()
    listed = ", ".join(f"`{tool}`" for tool in missing)
    why = (
        f"the prompt of {dataset} is plain text, which lists no tools; write `prompt = "
        "chat(row....)`, or name the tools in the text"
        if prompt.messages is None
        else f"the chat template of model {model} does not show `tools`; set `chat_template` to "
        "one that does, or name the tools in a message"
    )
    return Played(unseen=f"the prompt does not mention {listed} of environment {name}: {why}")
