"""The five renderings of the design (tooling_and_style A3), on the shipped GRPO pipeline."""

from pathlib import Path

from forgedsl.lint.engine import lint_source
from forgedsl.report import full
from forgedsl.source import SourceFile

FOLDER = Path(__file__).parents[2] / "pipelines"
NAME = "pipelines/grpo_math.forge"
TEXT = (FOLDER / "grpo_math.forge").read_text("utf-8")


def shown(code, text=TEXT, overrides=()):
    source = SourceFile(NAME, text)
    result = lint_source(source, FOLDER, profile="none", overrides=overrides)
    found = [d for d in result.diagnostics if d.code == code]
    return full.render(found, result.sources) + "\n"


def test_measure_mismatch(golden):
    old, new = "temperature = 1.0, top_p = 1.0,", "temperature = 0.8, top_p = 0.95,"
    golden("renderings/L411.txt", shown("L411", TEXT.replace(old, new)))


def test_gpus_exceed_host(golden):
    cluster = 'cluster { gpu = "H100", gpu_memory = 80GiB }\n'
    golden("renderings/P203.txt", shown("P203", TEXT + cluster, ["generator.replicas=4"]))


def test_requirement_failed(golden):
    golden("renderings/F120.txt", shown("F120", overrides=["max_new=8192"]))


def test_bottleneck(golden):
    golden("renderings/A307.txt", shown("A307", overrides=["reference.device=cpu"]))


def test_unclosed_block(golden):
    start = TEXT.index("dataset gsm8k {")
    end = TEXT.index("}\n", TEXT.index("max_prompt_tokens = max_prompt"))
    golden("renderings/S003.txt", shown("S003", TEXT[:end] + TEXT[end + 2 :]))
    assert start < end
