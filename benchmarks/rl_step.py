"""The whole step on GPUs: time split, tokens a second, MFU, peak memory and start-up of one run.

    made-up prompts + rl_step.forge --forgec run--> metrics.jsonl, events.jsonl --> table, JSON

    python benchmarks/rl_step.py [--gpus 1] [--steps 9] [--starts 2] [--sync 'on_swap = keep']
                                 [--set KEY=VALUE ...] [--profile one] [--keep FOLDER]

Qwen3-0.6B's shape (or `--size`), random weights, 16 prompts x 8 completions of 256 + 1,024 tokens,
DAPO without a reference: one GPU takes turns, two are asynchronous with a policy age of at most 1.
Figures are medians from the third step on (several GPUs: means, as steps come in pairs), of the
first start. Starts are counted from the command. More `--starts` only start and take two steps,
with what the one before compiled. MFU is that of training.py. Memory is the most that nvidia-smi
saw on a GPU, once a second. Several runs at once take GPUs of their own by `CUDA_VISIBLE_DEVICES`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
SHAPES = {"0.6B": (596_049_920, 28, 2048), "1.7B": (1_720_574_976, 28, 2048),
          "4B": (4_022_468_096, 36, 4096), "4B-A1B": (1_067_000_000, 24, 2048)}  # fmt: skip
"""of Qwen3: parameters that a token uses, layers, and heads x their width"""
MIXTURE = (
    "qwen3_moe(layers = 24, hidden = 2048, heads = 16, kv_heads = 8, head_dim = 128, ffn = 768,"
    " experts = 32, active = 4, vocab = 151936)"
)
"""the shape 4B-A1B: 4.24 B parameters"""
VOCABULARY = 151_936


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("gpus", 1), ("steps", 9), ("starts", 1), ("prompt", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cut", action="store_true", help="kill it then: no last checkpoint")
    parser.add_argument("--size", choices=tuple(SHAPES), default="0.6B")
    parser.add_argument("--sync", default="", help="settings of the sync")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--profile", choices=("one", "none"), help="otherwise by --gpus")
    parser.add_argument("--keep", type=Path, help="keep the run folders in this folder")
    return parser.parse_args()


def inputs(folder: Path, prompt: int, sync: str, size: str = "") -> None:
    """A tokenizer of words, prompts of so many tokens, and a reward that knows nothing."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ends = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    words = dict(zip(ends.values(), range(1, 4), strict=True))
    words |= {f"t{i}": i for i in range(VOCABULARY) if i not in words.values()}
    made = Tokenizer(models.WordLevel(words, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(tokenizer_object=made, **ends).save_pretrained(folder / "tokenizer")
    draw = random.Random(0)
    rows = (
        {"prompt": " ".join(f"t{draw.randrange(10, 150_000)}" for _ in range(prompt)),
         "target": str(i)}
        for i in range(640)
    )  # fmt: skip
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "noise.py").write_text(
        "import zlib\n\n\ndef drawn(prompt: str, response: str, target: str) -> float:\n"
        "    return zlib.crc32((target + response[:200]).encode()) / 2**32\n"
    )
    text = (HERE / "rl_step.forge").read_text()
    plain = "sync trainer -> generator"
    text = text.replace(plain, f"{plain} {{ {sync} }}") if sync else text
    text = text.replace("qwen3(size)", MIXTURE) if size == "4B-A1B" else text
    (folder / "rl_step.forge").write_text(text)


class Memory:
    """MiB of the fullest GPU, while it is open."""

    def __enter__(self) -> Memory:
        self.most, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        mine = os.environ.get("CUDA_VISIBLE_DEVICES")  # nvidia-smi itself lists all
        command += [f"--id={mine}"] if mine else []
        while not self._ended.wait(1.0):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            self.most = max([self.most, *map(int, done.stdout.split())])


def run(folder: Path, name: str, steps: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run, and what it says of itself."""
    command = [sys.executable, "-m", "forgedsl.cli.main", "run", str(folder / "rl_step.forge")]
    command += ["--run-dir", str(folder / name), "--set"]
    command += [f"schedule.steps={steps + args.cut}"]
    command += ["--set", f"max_prompt={args.prompt}"]
    command += ["--set", f"size={args.size}"] if args.size != "4B-A1B" else []
    for setting in args.settings:
        command += ["--set", setting]
    command += ["--profile", args.profile or ("one" if args.gpus == 1 else "none")]
    begin = time.time()
    with Memory() as memory:
        if args.cut:
            cut(command, folder / name / "metrics.jsonl", steps)
        else:
            subprocess.run(command, check=True, stdout=sys.stderr)
    found = measured(folder / name, args, begin)
    return found | {"peak_gib": round(memory.most / 1024, 1)}


def cut(command: list[str], metrics: Path, steps: int) -> None:
    """Run until so many steps are written, then kill all its processes."""
    with subprocess.Popen(command, stdout=sys.stderr, start_new_session=True) as process:
        try:
            while process.poll() is None:
                if metrics.is_file() and metrics.read_text().count("\n") >= steps:
                    break
                time.sleep(0.2)
        finally:  # also when this process is ended: what is left would hold the GPU
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def measured(run_dir: Path, args: argparse.Namespace, begin: float) -> dict[str, Any]:
    """The figures of a run folder. `begin` is the time of the command."""
    mean = args.gpus > 1
    chosen = dict(text.split("=", 1) for text in args.settings)
    trainers = int(chosen.get("trainer.procs", 1))
    rows, events = (
        [json.loads(line) for line in (run_dir / f"{name}.jsonl").read_text().splitlines()]
        for name in ("metrics", "events")
    )
    middle = statistics.fmean if mean else statistics.median
    late = rows[2:] or rows[1:]
    started = next(e["time"] for e in events if e["kind"] == "run.start")
    ready = [e for e in events if e["kind"] == "service.ready"]
    trained = [e["seconds"] for e in events if e["kind"] == "step.end"][-len(late) :]
    syncs = [e for e in events if e["kind"] == "sync.end"][-len(late) :]
    step = middle([row["step_s"] for row in late])
    prompts = late[-1]["tokens"] / late[-1]["sequences"] - late[-1]["response_tokens_mean"]
    work = middle([flops(row, prompts, args.size) for row in late])
    peak = next((value for name, value in PEAK.items() if name in device()), None)
    found: dict[str, Any] = {
        "device": device(),
        "step_s": step,
        "sampling_s": step - middle([row["sampler_idle_s"] for row in late]),
        "training_s": middle(trained),
        "sync_s": middle([e["transfer_s"] for e in syncs]),
        "publish_s": middle([e["publish_s"] for e in syncs]),
        "reward_s": middle([row.get("reward_s/drawn", 0.0) for row in late]),
        "last_token_to_training_s": middle(_ends_of_sampling(events)[-len(late) :]),
        "trainer_idle_s": middle([row["trainer_idle_s"] for row in late]),
        "sampler_idle_s": middle([row["sampler_idle_s"] for row in late]),
        "tokens_per_s": middle([row["tokens"] for row in late]) / step,
        "mfu_training": work / middle(trained) / peak / trainers if peak else None,
        "mfu_step": work / step / peak / args.gpus if peak else None,
        "ratio_first": rows[0]["loss/ratio"],
        "grad_norm_first": rows[0]["grad_norm"],
        "first_step_s": rows[0]["step_s"],
        "start_s": _sampling_starts(events) - begin,
        "start_before_services_s": started - begin,
        "checkpoint_s": [e["seconds"] for e in events if e["kind"] == "checkpoint.saved"],
        "checkpoint_paused_s": [e["paused"] for e in events if e["kind"] == "checkpoint.saved"],
        "steps_s": [round(row["step_s"], 2) for row in rows],
        "sync_by": next(e["transport"] for e in events if e["kind"] == "sync.end"),
    }
    found |= {f"start_{e['service']}_s": e["seconds"] for e in ready}
    phases = [e for e in ready if "seconds" in e["facts"]]
    found |= {f"start_{e['service']}": e["facts"]["seconds"] for e in phases}
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}


def _sampling_starts(events: list[dict[str, Any]]) -> float:
    """When the first request may be sent: after the first weights have arrived, if an engine starts
    with random ones."""
    first = next(e["time"] for e in events if e["kind"] == "step.start")
    before = ("controller.start", "sync.end")
    return float(max(e["time"] for e in events if e["kind"] in before and e["time"] < first))


def _ends_of_sampling(events: list[dict[str, Any]]) -> list[float]:
    """Seconds from the last token of a step's completions to the start of its training."""
    ended: dict[int, float] = {}
    for event in events:
        if event["kind"] == "group":
            for span in event["spans"]:
                if span["span"] == "sample":
                    last = span["engine_end"]
                    last = max(last) if isinstance(last, list) else last
                    ended[event["group"]] = event["from"] + last
    begins = {e["id"]: e["time"] for e in events if e["kind"] == "step.start"}
    return [
        begins[e["id"]] - max(ended[group] for group in e["groups"])
        for e in events
        if e["kind"] == "step.end"
    ]


def flops(row: dict[str, Any], prompt: float, size: str) -> float:
    """What training on a step takes, nothing recomputed: products, and causal attention."""
    length = prompt + row["response_tokens_mean"]
    params, layers, width = SHAPES[size]
    attention = 12 * layers * width * length * length / 2
    return float(row["sequences"] * (6 * params * length + attention))


def device() -> str:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `timeout` ends the run too
    with contextlib.ExitStack() as stack:
        name = args.keep or stack.enter_context(tempfile.TemporaryDirectory())
        Path(name).mkdir(parents=True, exist_ok=True)
        inputs(Path(name), args.prompt, args.sync, args.size)
        for start in range(args.starts):
            found = run(Path(name), f"run{start}", args.steps if start == 0 else 2, args)
            for key, value in found.items():
                print(f"  {key:24} {value}", file=sys.stderr)
            print(json.dumps({"start": start + 1, "gpus": args.gpus, **found}), flush=True)


if __name__ == "__main__":
    main()
