"""The trainer alone: seconds, tokens per second, MFU and peak memory of optimizer steps.

    made-up samples (prompt + completion) --TitanTrainer--> steps --> one line of JSON each

    python benchmarks/training.py [--size 0.6B] [--sequences 128] [--prompt 256] [--new 1024]
                                  [--seq-len 2048] [--rows 16] [--steps 5] [--set KEY=VALUE ...]

No generator and no mesh: the actor's own code runs in this process, on a GPU where there is one.
MFU is 6 FLOPs a parameter and token, and 12 L H D for the attention to half of the tokens before
one's own, over the GPU's dense bf16 peak; what is recomputed does not count as work.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import pstats
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rl_step
import torch

from forgedsl.lower import job as spec
from forgedsl_runtime.data_types import Batch, Sample
from forgedsl_runtime.models import resolve_model
from forgedsl_runtime.services.titan.upstream import flash_attention

HERE = Path(__file__).parent
PEAK = rl_step.PEAK
MIXTURE = "4B-A1B"
"""the shape of rl_step.py with experts"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="0.6B", help=f"of Qwen3, or {MIXTURE}")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    for name, default in (
        ("sequences", 128), ("prompt", 256), ("new", 1024), ("seq-len", 2048), ("rows", 16),
        ("steps", 5),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--attention", choices=("auto", "torch"), default="auto")
    parser.add_argument("--profile", action="store_true", help="where the first step's time goes")
    return parser.parse_args()


def compiled(args: argparse.Namespace, folder: Path) -> spec.Job:
    """The job of training.forge under these arguments."""
    (folder / "tokenizer").mkdir()
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(16)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t1", eos_token="t2").save_pretrained(
        folder / "tokenizer"
    )
    (folder / "prompts.jsonl").write_text('{"prompt": "t4", "target": "1"}\n')
    file = folder / "training.forge"
    text, settings = (HERE / "training.forge").read_text(), [f"size={args.size}"]
    if args.size == MIXTURE:
        text, settings = text.replace("qwen3(size)", rl_step.MIXTURE), []
    file.write_text(text)
    settings += [f"seq_len={args.seq_len}", f"rows={args.rows}"]
    host = "2xH200" if torch.cuda.is_available() else "cpu"
    command = [
        sys.executable,
        "-m",
        "forgedsl.cli.main",
        "build",
        str(file),
        "-o",
        str(folder / "b"),
    ]
    for setting in (*settings, *args.settings):
        command += ["--set", setting]
    subprocess.run([*command, "--host", host], check=True, stdout=subprocess.DEVNULL)
    return spec.Job.model_validate_json((folder / "b" / "job.json").read_text())


def trainer(job: spec.Job, folder: Path) -> Any:
    """The trainer's actor, without a mesh around it."""
    from forgedsl_runtime.actors.abandon_step import AbandonStep
    from forgedsl_runtime.rendezvous import rendezvous_store
    from forgedsl_runtime.services.titan.actor import TitanTrainer

    actor = TitanTrainer.__new__(TitanTrainer)
    service = job.services["trainer"]
    assert isinstance(service, spec.TitanService)
    actor._abandon, actor._known = AbandonStep(), set()
    actor.rank, actor.job, actor.name, actor.service = 0, job, "trainer", service
    actor.model_spec, actor.world = job.models["policy"], 1
    actor.folder = resolve_model(job, "policy", folder / "b", folder)
    store = rendezvous_store()
    actor._store = store  # it closes when nothing refers to it
    actor._rendezvous, actor._threads = (store.host, store.port), torch.get_num_threads()
    actor._setup(folder, f"training-{store.port}", None)
    return actor


def made_up(args: argparse.Namespace) -> Batch:
    """Samples of nearly equal lengths, and of fields that no shortcut can use."""
    draw = random.Random(3)
    samples = []
    for _ in range(args.sequences):
        new = draw.randint(args.new * 7 // 8, args.new)
        samples.append(
            Sample(
                token_ids=[draw.randrange(args.vocabulary) for _ in range(args.prompt + new)],
                num_prompt=args.prompt,
                mask=[True] * new,
                token_fields={
                    "behavior": [draw.gauss(-math.log(args.vocabulary), 0.1) for _ in range(new)]
                },
                sequence_fields={"adv": draw.gauss(0, 1)},
            )
        )
    return Batch(samples=samples)


def flops(actor: Any, batch: Batch, size: str = "") -> float:
    config = actor.titan.config
    attention = config.layers[0].attention
    dense = sum(p.numel() for p in actor.titan.model.parameters())
    if not config.enable_weight_tying:
        dense -= config.vocab_size * config.dim
    if size == MIXTURE:  # a token uses some of the experts
        dense = rl_step.SHAPES[size][0]
    heads, head_dim = attention.n_heads, attention.head_dim or config.dim // attention.n_heads
    each = (len(sample.token_ids) for sample in batch.samples)
    return float(
        sum(6 * dense * n + 12 * len(config.layers) * heads * head_dim * n * n / 2 for n in each)
    )


def first_step(actor: Any, batch: Batch, loss: str) -> None:
    """Take a step under cProfile and print the calls that took longest."""
    profile = cProfile.Profile()
    profile.runcall(actor._step, batch, loss)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(90)


def main() -> None:
    args = arguments()
    if args.attention == "torch":
        flash_attention.installed = lambda: False
    with tempfile.TemporaryDirectory() as name:
        job = compiled(args, Path(name))
        actor = trainer(job, Path(name))
        batch = made_up(args)
        work = flops(actor, batch, args.size)
        gpu = torch.cuda.is_available()
        peak = next((v for k, v in PEAK.items() if gpu and k in torch.cuda.get_device_name()), 0.0)
        if args.profile:
            first_step(actor, batch, next(iter(job.losses)))
        for step in range(1, args.steps + 1):
            if gpu:
                torch.cuda.reset_peak_memory_stats()
                torch.cuda.synchronize()
            begin = time.perf_counter()
            result = actor._step(batch, next(iter(job.losses)))
            if gpu:
                torch.cuda.synchronize()
            seconds = time.perf_counter() - begin
            line = {
                "step": step, "seconds": round(seconds, 3), "tokens": result.tokens,
                "tokens_per_s": round(result.tokens / seconds), "kernel": result.kernel,
                "mfu": round(work / seconds / peak, 3) if peak else None,
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if gpu else None,
                "loss": result.loss, "grad_norm": round(result.grad_norm, 5),
            }  # fmt: skip
            print(json.dumps(line), flush=True)
        begin = time.perf_counter()
        actor._publish()
        print(json.dumps({"publish_s": round(time.perf_counter() - begin, 4)}), flush=True)
        actor._publications = 99  # no probe any more
        begin = time.perf_counter()
        actor._publish()
        print(json.dumps({"publish_again_s": round(time.perf_counter() - begin, 4)}), flush=True)
        actor._close()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
