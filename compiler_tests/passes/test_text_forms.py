"""The text of HIR, graph and plan: readable, on lines that fit, the same on every run."""

from pathlib import Path

import pytest

from forgedsl.irtext import print_ir
from forgedsl.passes import Request, compile_program

ROOT = Path(__file__).parents[2]
PROFILES = {"grpo_math": ("none", "cpu", "gpu1", "gpu2", "gpu4", "cluster", "gpu_tiny")}
CASES = [
    (path, profile)
    for path in sorted((ROOT / "pipelines").glob("*.forge"))
    for profile in PROFILES.get(path.stem, ("none",))
]


def texts(path, profile):
    state = compile_program(Request(path=path, profile=profile), until="plan").state
    assert state is not None
    sources = state.loader.sources
    plan = print_ir(state.plan, sources, externals={"program": state.hir})
    return print_ir(state.hir, sources), print_ir(state.graph, sources), plan


@pytest.mark.parametrize(("path", "profile"), CASES, ids=lambda v: getattr(v, "stem", v))
def test_every_pipeline_has_the_same_text_twice(path, profile):
    assert texts(path, profile) == texts(path, profile)


def test_the_form_is_readable(golden, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, text, _ = texts(Path("pipelines/grpo_math.forge"), "cpu")
    assert max(len(line) for line in text.splitlines()) <= 100
    golden("grpo_math/cpu/graph.ir", text)


def test_expressions_stand_as_in_the_file():
    text, _, _ = texts(ROOT / "pipelines" / "grpo_math.forge", "none")
    assert "`0.85 * correct + 0.1 * thinking + 0.05 * brevity`" in text
    assert "`ratio = exp(clamp(logprob - behavior, -10.0, 10.0))`" in text
