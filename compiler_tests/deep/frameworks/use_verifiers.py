"""A taskset of verifiers (v1), with its reward and interception, and a harness that asks once."""

import asyncio
import json
import os
import sys
from collections.abc import Iterable

import verifiers.v1 as vf
from openai import AsyncOpenAI


class Sum(vf.Task):
    """One sum; its reward reads the agent's last reply."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        said = trace.messages[-1].content if trace.messages else ""
        return float(str(self.data.description) in str(said))


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    """The one task of this trajectory."""

    def load(self) -> Iterable[Sum]:
        with open(os.environ["FORGE_TASK"]) as file:
            task = json.load(file)
        yield Sum(vf.TaskData(prompt=task["text"], description=task["target"]))


class Once(vf.Harness[vf.HarnessConfig]):
    """Ask once, in this process."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):  # type: ignore[no-untyped-def]
        said = [{"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=said, max_tokens=16)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Once", "Sums"]


async def main() -> None:
    sys.modules["use_verifiers"] = sys.modules["__main__"]
    config = vf.AgentConfig(
        harness={"id": "use_verifiers"}, runtime=vf.SubprocessConfig(),
        model=os.environ["FORGE_MODEL"],
        client=vf.EvalClientConfig(
            base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY"
        ),
    )  # fmt: skip
    (task,) = Sums(vf.TasksetConfig(id="use_verifiers"))
    trace = await vf.make_agent(config).run(task)
    if not trace.ok:
        raise SystemExit(f"{trace.errors}")
    print(trace.reward)


asyncio.run(main())
