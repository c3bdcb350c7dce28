"""What the documents call not supported is so: a page goes red when the feature arrives.

A line of README or a guide that says so is either a row of a table of
other tools, whose names must be no settings of ours, or it is in CLAIMS with what shows it.
"""

import re
from pathlib import Path

import pytest
from forge_texts import GRPO, changed

from forgedsl.api import load_text
from forgedsl.launchers import registry
from forgedsl.lower.build import lower
from forgedsl.transports import TRANSPORTS

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "compiler_tests"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
SAYS = re.compile(r"\bnot (there|yet|here yet|supported)\b|\bis not carried out\b", re.I)
ROW = re.compile(r"\| *(`.*?) *\| (.*?) *\|$")
BLOCKS = (
    "policy", "trainer", "trainer.optimizer", "trainer.batch", "trainer.memory", "trainer.parallel",
    "trainer.lora", "reference", "generator", "generator.engine", "generator.sampling", "gsm8k",
    "schedule", "checkpoint", "logging", "logging.wandb", "logging.mlflow", "logging.trackio",
    "run", "total",
)  # fmt: skip
"""where a setting could stand"""
OURS = {"seed"}
"""names that are settings elsewhere and mean something else in the row"""
HEAD = (
    ("titan(policy) {\n  procs = 4,", "titan(value_head(policy)) {\n  procs = 4,"),
)  # fmt: skip

REFUSED = [
    # (page, the words, overrides, edits, code, words of the help)
    ("README.md", "`pp` and `dp` of a generator", ("generator.parallel.pp=2",), (), "P216",
     "use `parallel.tp` to split"),
    ("README.md", "`pp` and `dp` of a generator", ("generator.parallel.dp=2",), (), "P216",
     "use `replicas` for more throughput"),
    ("README.md", "weight transfer over RDMA", (), (("{ every = 1 }", "{ transport = rdma }"),),
     "F113", "known are"),
    ("critics.md", "`parallel.tp` beside a head", ("trainer.parallel.tp=2", "trainer.procs=2"),
     HEAD, "P216", "use `parallel.dp_shard` to shard"),
    ("placement.md", "`tp` and `offload` are not supported",
     ("trainer.parallel.pp=2", "trainer.parallel.tp=2"), (), "P216",
     "use `parallel.dp_shard` to shard"),
    ("placement.md", "`tp` and `offload` are not supported",
     ("trainer.parallel.pp=2", "trainer.memory.offload=true"), (), "P216", "more stages"),
    ("placement.md", "`pp = auto` is not supported", ("trainer.parallel.pp=auto",), (), "F109",
     "write a value"),
    ("placement.md", "belong to another optimizer are an error",
     ("trainer.optimizer.momentum=0.9",), (), "F113", ""),
    ("placement.md", "so is `muon` beside `memory.offload`",
     ("trainer.optimizer.kind=muon", "trainer.memory.offload=true"), (), "F113", ""),
    ("from-verl.md", "a KL penalty in the reward is not supported", (),
     (("reward correct", "reward kl(r: Rollout) -> f32 = r.logprob\nreward correct"),), "F101", ""),
    ("from-torchforge.md", "`parallel.tp`; a pipeline-parallel generator is not supported",
     ("generator.parallel.pp=2",), (), "P216", "use `parallel.tp` to split"),
]  # fmt: skip
"""a setting, and the diagnostic that refuses it, with its remedy"""
HELD = [
    ("extensions.md", "If a copy has changed, the run does not start",
     "runtime/test_extensions.py", "has changed since the job was compiled"),
    ("3-sampling.md", "A loss without it is the error A303", "rules/A303.md", "## fires"),
    ("4-dapo.md", "A loss without any ratio is an error here (L431)", "rules/L431.md", "## fires"),
]  # fmt: skip
"""refusals that another test shows"""
BY_HAND = {
    ("README.md", "how to install it without a clone, and what is not supported yet"),
    ("README.md", "that is not supported, `forgec lint` reports"),
    ("README.md", "What is not supported yet is listed"),
    ("README.md", "Not supported yet:"),  # its parts are in REFUSED and below
    ("critics.md", "a model of its own as critic is not supported yet"),  # below
}
"""lines that claim nothing by themselves, or more than one thing"""


def text(page: str) -> str:
    path = ROOT / page if page == "README.md" else ROOT / "docs/guide" / page
    return " ".join(path.read_text("utf-8").split())


def said(page: str, words: str) -> bool:
    return " ".join(words.split()) in text(page)


@pytest.mark.parametrize(("page", "words", "overrides", "edits", "code", "remedy"), REFUSED)
def test_what_a_page_calls_not_there_is_refused(
    page: str, words: str, overrides, edits, code: str, remedy: str, tmp_path: Path
) -> None:
    assert said(page, words)
    found = diagnostics(tmp_path, overrides, edits)
    assert code in found, found
    assert remedy in found[code]


def diagnostics(folder: Path, overrides, edits) -> dict[str, str]:
    """Help of the errors of a changed program, by code."""
    loaded = load_text(changed(GRPO, *edits), "t.forge", folder=folder, overrides=overrides)
    if loaded.program is not None and not loaded.reporter.has_errors:
        lower(loaded.program, reporter=loaded.reporter, sources=loaded.sources, base_dir=folder)
    return {d.code: f"{d.message} {d.help}" for d in loaded.reporter if d.severity == "error"}


@pytest.mark.parametrize(("page", "words", "file", "test"), HELD)
def test_what_a_page_calls_refused_is_held(page: str, words: str, file: str, test: str) -> None:
    assert said(page, words)
    assert test in (TESTS / file).read_text("utf-8")


def claims() -> list[tuple[str, int, str]]:
    """Lines of the pages that call something not supported."""
    found = []
    for page in PAGES:
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
            if SAYS.search(line):
                found.append((page.name, number, line))
    return found


def foreign(line: str) -> list[str]:
    """The names of another tool in a row that says `not supported` and nothing of ours."""
    row = ROW.match(line)
    if row is None or not re.match(r"not supported", row[2]):
        return []
    return [name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)", row[1])]


def test_every_claim_is_known() -> None:
    known = [(page, words) for page, words, *_ in (*REFUSED, *HELD)] + [*BY_HAND]
    left = [
        f"{page}:{number}: {line}"
        for page, number, line in claims()
        if not foreign(line) and not any(p == page and w.split("\n")[0] in line for p, w in known)
    ]
    assert left == []
    assert all(said(page, words) for page, words in BY_HAND)


def test_names_of_other_tools_that_are_not_there_are_no_settings(tmp_path: Path) -> None:
    names = sorted({name for _, _, line in claims() for name in foreign(line)} - OURS)
    assert len(names) > 15
    there = []
    for block in BLOCKS:
        overrides = [f"{block}.{name}=1" for name in (*names, "lr")]
        loaded = load_text(GRPO, "t.forge", folder=tmp_path, overrides=overrides)
        unknown = [d for d in loaded.reporter if d.code in ("F101", "F103")]
        wrong = {d.span.file.strip("<>").rpartition(": ")[2] for d in unknown}
        there += [f"{block}.{name}" for name in (*names, "lr") if f"{block}.{name}" not in wrong]
    assert there == ["trainer.optimizer.lr"]  # which is one of ours


def test_nothing_submits_a_run_to_kubernetes_and_nothing_moves_weights_over_rdma() -> None:
    assert said("README.md", "submitting a run to Kubernetes with `forgec run`")
    assert registry.launcher("kubernetes").submit == ""
    assert not [row.name for row in TRANSPORTS if "rdma" in row.name]


def test_there_is_one_platform() -> None:
    assert said("README.md", "macOS and Windows")
    for name in ("cpu", "gpu"):
        pins = (ROOT / f"requirements/{name}.txt").read_text("utf-8")
        assert "Linux x86-64" in pins.partition("\n")[0]


def test_a_critic_is_a_head_on_the_trunk_of_the_policy(tmp_path: Path) -> None:
    """A second model that is trained beside the policy is refused."""
    assert said("critics.md", "a model of its own as critic is not supported yet")
    critic = (
        ("service trainer", "service critic : titan(value_head(policy)) { procs = 1, "
         "batch { seq_len = 4096, rows = 1 } }\nservice trainer"),
        ("  trainer.step(batch, loss = grpo)\n",
         "  trainer.step(batch, loss = grpo)\n  critic.step(batch, loss = grpo)\n"),
    )  # fmt: skip
    found = diagnostics(tmp_path, (), critic)
    assert "one step takes both" in found["F130"]
