"""Long rows on several GPUs: seconds, tokens a second and memory of steps on documents of one row.

    made-up documents + long_rows.forge --forgec run--> metrics.jsonl --> one line of JSON

    python benchmarks/long_rows.py [--length 32768] [--steps 8] [--set KEY=VALUE ...]

Two ranks have a document each (`dp_shard = 2`, as it is), or share one (`--set
trainer.parallel.cp=2`). Qwen3-0.6B's shape, random weights, bfloat16. Figures are medians from the
third step on; memory is the most that nvidia-smi saw on a GPU, once a second.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rl_step import Memory

HERE = Path(__file__).parent
TOKENIZER = HERE.parent / "pipelines/tokenizers/arithmetic"
DOCUMENTS, ROOM = 200, 168
"""how many there are, and by how many tokens they are shorter than a row"""


def documents(file: Path, length: int) -> None:
    """Digits, a token each, that no model can know."""
    draw = random.Random(0)
    with file.open("w") as out:
        for _ in range(DOCUMENTS):
            text = "".join(draw.choices("0123456789", k=length - ROOM))
            turns = [
                {"role": "user", "content": "7 + 5 ="}, {"role": "assistant", "content": text}
            ]  # fmt: skip
            out.write(json.dumps({"messages": turns}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(TOKENIZER, folder / "tokenizer")
        shutil.copy(HERE / "long_rows.forge", folder)
        documents(folder / "demos.jsonl", args.length)
        command = [sys.executable, "-m", "forgedsl.cli.main", "run", "long_rows.forge"]
        command += ["--run-dir", "run", "--set", f"seq_len={args.length}", f"steps={args.steps}"]
        with Memory() as memory:
            subprocess.run([*command, *args.settings], cwd=folder, check=True, stdout=sys.stderr)
        rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").open()]
    step = statistics.median(row["step_s"] for row in rows[2:])
    print(json.dumps({
        "step_s": round(step, 3), "tokens_per_s": round(rows[-1]["tokens"] / step),
        "peak_gib": round(memory.most / 1024, 1), "grad_norm_first": rows[0]["grad_norm"],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
