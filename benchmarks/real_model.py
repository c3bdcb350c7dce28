"""Accuracy of an exported model on held-out questions, asked by plain vLLM without ForgeDSL.

    questions --chat template--> vllm.LLM --> answers, the last number of each compared

    python benchmarks/real_model.py FOLDER [--samples 64] [--temperature 1.0] [--limit 24]

One JSON line for each set of `pipelines/data/curriculum_*.jsonl` that training does not see, and
the first answers. An answer that is cut at `--max-tokens` counts as wrong, as in smollm_math.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "pipelines" / "data"
SETS = ("one_digit", "words", "two_digits")
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--show", type=int, default=10)
    for name, default in (("temperature", 1.0), ("gpu-memory", 0.2)):
        parser.add_argument(f"--{name}", type=float, default=default)
    return parser.parse_args()


def rows_of(name: str, limit: int | None) -> list[dict[str, str]]:
    text = (DATA / f"curriculum_{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()][:limit]


def is_right(text: str, wanted: str) -> bool:
    """Whether the last number of `text` is the one after `#### `."""
    found = NUMBER.findall(text)
    return bool(found) and float(found[-1].replace(",", "")) == float(wanted.split("#### ")[1])


def main() -> None:
    args = arguments()
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(args.folder), max_model_len=256, seed=0, gpu_memory_utilization=args.gpu_memory
    )
    tokenizer: Any = engine.get_tokenizer()
    params = SamplingParams(
        n=args.samples, temperature=args.temperature, max_tokens=args.max_tokens
    )
    for name in SETS:
        rows = rows_of(name, args.limit)
        prompts: Any = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": row["question"]}],
                add_generation_prompt=True,
                tokenize=False,
            )
            for row in rows
        ]
        answers = engine.generate(prompts, params, use_tqdm=False)
        right, shown = 0, []
        for row, answer in zip(rows, answers, strict=True):
            good = [
                one.finish_reason == "stop" and is_right(one.text, row["answer"])
                for one in answer.outputs
            ]
            right += sum(good)
            shown.append([row["question"], answer.outputs[0].text, good[0]])
        count = len(rows) * args.samples
        print(json.dumps({"set": name, "answers": count, "accuracy": round(right / count, 4)}))
        for line in shown[: args.show]:
            print("  " + json.dumps(line))


if __name__ == "__main__":
    main()
