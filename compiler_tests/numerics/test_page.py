"""docs/losses.md: its Python blocks run, one after the other; its table names the arguments."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import torch

from forgedsl_runtime.losses import LossFunction

PAGE = Path(__file__).parents[2] / "docs/losses.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_examples_run(capsys):
    torch.manual_seed(0)
    torch._dynamo.reset()
    names: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M)
    assert len(blocks) >= 8
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "torch/logits" in printed
    assert re.search(r"'clamp \S+:6:\d+', 'min \S+:7:\d+'", printed)


def test_the_table_has_all_arguments():
    table = TEXT.split("## Arguments")[1].split("## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (both|logits|linear) \|", table, re.M)
    listed = {
        form: {name for cell, of in rows if of in ("both", form)
               for name in re.findall(r"`(\w+)`", cell)}
        for form in ("logits", "linear")
    }  # fmt: skip
    for form, method in (("logits", LossFunction.__call__), ("linear", LossFunction.linear)):
        parameters = set(inspect.signature(method).parameters)
        own = {"self", "inputs", "logits", "hidden", "weight", "ignore_index"}
        assert parameters - own == listed[form]
