"""The agent: a taskset of verifiers (v1) with its reward, and a harness that asks the policy once.

    python3 -m venv /venvs/verifiers
    /venvs/verifiers/bin/python -m pip install verifiers==0.4.0
    forgec run verifiers.forge interpreter=/venvs/verifiers/bin/python

A taskset of your own goes into TASKSETS, and its name behind `--taskset`. The shipped harnesses of
verifiers install their programs when they start; this one needs no network.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

try:
    import verifiers.v1 as vf
    from openai import AsyncOpenAI
except ImportError as error:
    sys.exit(f"{error}: {sys.executable} -m pip install verifiers==0.4.0")


class Sum(vf.Task):
    """A sum. `right` reads the last answer of the policy."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        said = str(trace.messages[-1].content) if trace.messages else ""
        return float(f"<answer>{self.data.description}</answer>" in said)


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    """The one task of this trajectory, which the run gives."""

    def load(self) -> Iterable[Sum]:
        with open(os.environ["FORGE_TASK"], encoding="utf-8") as file:
            task = json.load(file)
        yield Sum(vf.TaskData(prompt=task["text"], description=task["target"]))


class Once(vf.Harness[vf.HarnessConfig]):
    """Asks once, in this process."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(  # type: ignore[no-untyped-def]
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data
    ):
        messages: list[Any] = [{"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


NAME = "agent"
TASKSETS = {"sums": Sums}
__all__ = ["Once"]


async def main() -> None:
    parser = argparse.ArgumentParser(description="One task of a taskset of verifiers.")
    parser.add_argument("--taskset", choices=TASKSETS, required=True)
    chosen = TASKSETS[parser.parse_args().taskset]
    sys.modules[NAME] = sys.modules["__main__"]  # verifiers finds classes by the name of a module
    config = vf.AgentConfig(
        harness={"id": NAME},
        runtime=vf.SubprocessConfig(),
        model=os.environ["FORGE_MODEL"],
        client=vf.EvalClientConfig(
            base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY"
        ),
    )
    (task,) = chosen(vf.TasksetConfig(id=NAME))
    trace = await vf.make_agent(config).run(task)
    if not trace.ok:
        sys.exit(f"{trace.errors}")
    print(json.dumps({"solved": trace.reward}))


if __name__ == "__main__":
    asyncio.run(main())
