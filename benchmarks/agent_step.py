"""One game played as an environment and as an agent: step time, idle shares, and the same tokens.

    game.py: Talk (Environment)  --play-->                      tokens, step time --> table, JSON
             Talker (Agent)      --HTTP--> endpoint --engine-->

    python benchmarks/agent_step.py [--steps 6] [--set KEY=VALUE ...] [--keep FOLDER]

Qwen3-0.6B's shape, random weights, 16 prompts x 8 trajectories of three answers. An answer ends at
the first token whose word holds "777", one in 290 of a random model, so lengths are those of a
geometric distribution, cut at 1,024. After each answer the game says 64 words that depend on it.
Both ways run in turn with trainer and engine on one GPU, from the same seeds. Figures are medians
from the third step on. `same_answers` is the share of trajectories of the first step that have the
same tokens both ways, and `same_tokens` the share of tokens before the first that differs: engines
on GPUs add in an order that depends on what else is in the batch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import rl_step

HERE = Path(__file__).parent
WAYS = {
    "play": ("game.Talk(turns = turns) { max_observation = 80, on_error = 0.0 }",
             "max_turns = turns"),
    "agent": ("game.Talker(turns = turns) { deadline = 600s, on_error = 0.0 }", ""),
}  # fmt: skip
"""the environment of a way, and what `play` is told besides"""
GAME = '''
import zlib

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from forgedsl import Agent
from forgedsl.environment import Environment, Start, Step

HTTP = DefaultAsyncHttpxClient()


def said_to(text):
    """64 words that depend on the answer."""
    seed = zlib.crc32(text.encode())
    return " " + " ".join(f"t{10 + (seed + 7919 * i) % 150_000}" for i in range(64)) + " "


def score(text):
    return zlib.crc32(text.encode()) / 2**32


class Talk(Environment):
    parts = ("drawn",)

    def __init__(self, *, turns: int = 3) -> None:
        self.turns = turns

    def reset(self, task, rng):
        return Start()

    def step(self, turn):
        if turn.number + 1 == self.turns:
            return Step(rewards={"drawn": score(turn.text)}, done=True)
        return Step(said_to(turn.text))


class Talker(Agent):
    parts = ("drawn",)

    def __init__(self, *, turns: int = 3) -> None:
        self.turns = turns

    async def run(self, task, model):
        said = [dict(message) for message in task.messages]
        client = AsyncOpenAI(base_url=model.url, api_key=model.key, http_client=HTTP)
        for turn in range(self.turns):
            done = await client.chat.completions.create(model=model.name, messages=said)
            choice = done.choices[0]
            text = choice.message.content
            if choice.finish_reason == "length":
                return {"drawn": 0.0}
            if turn + 1 == self.turns:
                return {"drawn": score(text)}
            said.append({"role": "assistant", "content": text})
            said.append({"role": "user", "content": said_to(text)})
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--keep", type=Path, help="folder for files and runs")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        rl_step.inputs(folder, 256, "")
        (folder / "game.py").write_text(GAME)
        found = {way: run(folder, way, args) for way in WAYS}
        same = agreement(*(first_batch(folder / way) for way in WAYS))
    for way, figures in found.items():
        print(json.dumps({"way": way, **figures}), flush=True)
    ratio = found["agent"]["step_s"] / found["play"]["step_s"]
    print(json.dumps({"agent_over_play": round(ratio, 4), **same}))


def run(folder: Path, way: str, args: argparse.Namespace) -> dict[str, Any]:
    environment, more = WAYS[way]
    text = (HERE / "agent_step.forge").read_text()
    text = text.replace("game.PLAYED", environment).replace(", TURNS", more and f", {more}")
    file = folder / f"{way}.forge"
    file.write_text(text)
    command = [sys.executable, "-m", "forgedsl.cli.main", "run", str(file), "--profile", "one"]
    command += ["--run-dir", str(folder / way), "--record-batches", "1"]
    for setting in (f"schedule.steps={args.steps}", *args.settings):
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=sys.stderr)
    rows = [json.loads(line) for line in (folder / way / "metrics.jsonl").read_text().splitlines()]
    late = rows[2:] or rows[-1:]
    names = ("step_s", "tokens", "sequences", "sampler_idle_s", "trainer_idle_s")
    found: dict[str, Any] = {k: statistics.median([row[k] for row in late]) for k in names}
    found["tokens_per_s"] = found["tokens"] / found["step_s"]
    found["ratio_first"] = rows[0]["loss/ratio"]
    found = {k: round(v, 4) for k, v in found.items()}
    for name in ("step_s", "tokens"):
        found[f"every_{name}"] = [round(row[name], 2) for row in rows]
    return found


def first_batch(run_dir: Path) -> list[list[int]]:
    """Tokens of the samples of the first step."""
    batch = json.loads((run_dir / "batches/step-1.json").read_text())["batch"]
    return [sample["token_ids"] for sample in batch["samples"]]


def agreement(one: list[list[int]], other: list[list[int]]) -> dict[str, float]:
    """How far the samples of two first steps are the same."""
    before = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
        for x, y in zip(one, other, strict=True)
    ]
    same = [x == y for x, y in zip(one, other, strict=True)]
    share = sum(before) / sum(max(len(x), len(y)) for x, y in zip(one, other, strict=True))
    return {"same_answers": round(statistics.fmean(same), 4), "same_tokens": round(share, 4)}


if __name__ == "__main__":
    main()
