"""What changes a batch, a loss or a weight of three rehearsed steps, `diff` calls numerics.

Changes are generated: every setting of every declaration by its type, every number that the program
has, and edits by hand of what no type describes. Which of them change anything is found by running
the jobs, `rehearsed.py`.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from forge_texts import changed
from rehearsed import rehearse

from forgedsl.api import load_text
from forgedsl.errors import RunError
from forgedsl.lower.build import lower
from forgedsl.lower.diff import compare
from forgedsl.schema import KINDS, SERVICES
from forgedsl.settings import Type

STEPS = 3
TEXT = """\
forge 1
import "std/rl" as rl
import python "mine.py" as mine

param group : int   = 3
param eps   : float = 0.2
param beta  : float = 0.05

model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }

dataset sums {
  source = jsonl("sums.jsonl")
  prompt = chat("add", row.question)
  target = after(row.answer, "#### ")
}

service trainer : titan(policy) {
  device    = cpu
  optimizer { lr = 1e-2, warmup = 1 }
  batch     { seq_len = 64, rows = 256 }
}
service reference : titan(policy) { device = cpu, batch { seq_len = 64, rows = 8 } }
service generator : vllm(policy) { device = cpu, sampling { max_tokens = 12, stop = ["777"] } }

reward correct = rl.contains(lower = false)
reward kind = mine.isbool { effects = [io] }
reward short(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / 14, 0.0, 1.0)

rubric grade { score = 0.9 * correct + 0.1 * short + 0.3 * kind, on_truncated = 0.1 }

advantage group_norm(r: [G] f32) -> [G] f32 = (r - mean(r, G)) / (std(r, G) + 1e-6)
advantage centred(r: [G] f32) -> [G] f32 = r - mean(r, G)
filter mixed(score: [G] f32) -> bool = max(score, G) > -5.0

loss clipped(logprob: diff [B, T] f32, behavior: [B, T] f32, ref: [B, T] f32, adv: [B] f32,
             old: [B] f32, mask: [B, T] bool) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  gain  = min(ratio * adv, clip(ratio, 1 - eps, 1 + eps) * adv) + 0.01 * old * logprob
  minimize token_mean(-gain, mask) + beta * token_mean(rl.k3(logprob, ref), mask)
  report clip_frac = token_mean(abs(ratio - 1) > eps, mask)
}

flow train {
  prompt  = sums.draw(4)
  rollout = generator.sample(prompt, n = group)
  ref_lp  = reference.logprobs(rollout)
  score   = grade(rollout, prompt.target)
  kept    = rollout.keep(mixed(score))
  batch   = replay(kept, ref = ref_lp, adv = group_norm(score), old = centred(score))
  trainer.step(batch, loss = clipped)
  sync trainer -> generator
}

schedule sync { steps = 3 }
checkpoint { every = 2 }
logging { samples = 4 }
"""
PYTHON = """
def isbool(prompt, response, target):
    return float(len(response) % 2)

def opposite(prompt, response, target):
    return 1.0 - isbool(prompt, response, target)

class Longer:
    def __init__(self, by=1.0):
        self.by = by

    def __call__(self, prompt, response, target):
        return self.by * len(response)
"""
ROWS = "".join(
    f'{{"question": "{a}+{a % 7}", "answer": "so #### {a + a % 7}"}}\n' for a in range(40)
)
SUPERVISED = """\
forge 1
import "std/rl" as rl

param smooth : float = 0.1

model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }

dataset demos {
  source = jsonl("sums.jsonl")
  chat   = chat("add", row.question, row.answer)
}

service trainer : titan(policy) {
  device    = cpu
  optimizer { lr = 1e-2, warmup = 1, weight_decay = 0.1 }
  batch     { seq_len = 64, rows = 3, accumulate = 2 }
}

loss nll(logprob: diff [B, T] f32, entropy: diff [B, T] f32, mask: [B, T] bool) {
  minimize token_mean(-logprob, mask) - smooth * token_mean(entropy, mask)
  report nll = token_mean(-logprob, mask)
}

flow train {
  batch = demos.batches()
  trainer.step(batch, loss = nll)
}

schedule sync { steps = 3 }
"""
SUPERVISED_EDITS = [
    ('chat("add", row.question, row.answer)', 'chat("sum", row.question, row.answer)'),
    ('row.question, row.answer)', 'row.answer, row.question)'),
    ("chat   = ", "learn = all, chat = "),
    ('jsonl("sums.jsonl")', 'jsonl("more.jsonl")'),
    ("chat   = ", "shuffle = seed(3), chat = "),
    ("token_mean(-logprob, mask) -", "seq_mean(-logprob, mask) -"),
    ("- smooth *", "+ smooth *"),
    ("loss = nll)", "loss = rl.sft)"),
    ("accumulate = 2", "accumulate = 3"),
    ("seq_len = 64", "seq_len = 32"),
    ("weight_decay = 0.1 }", "weight_decay = 0.0 }"),
    ("service trainer : titan(policy) {", "service trainer : titan(policy) {\n  lora.rank = 2"),
    ("optimizer {", "optimizer { kind = adam,"),
]  # fmt: skip
EDITS = [
    ("= mine.isbool", "= mine.opposite"),
    ("= mine.isbool", "= mine.Longer(by = 0.5)"),
    ("rl.contains(lower = false)", "rl.exact"),
    ("rl.contains(lower = false)", "rl.math_equal"),
    ("adv = group_norm(score), old = cent", "adv = centred(score), old = cent"),
    ("/ (std(r, G) + 1e-6)", "/ (max(r, G) + 2.0)"),
    ("(r - mean(r, G))", "(r - max(r, G))"),
    ("optimizer { lr = 1e-2", "lora { rank = 2 }\n  optimizer { lr = 1e-2"),
    ("loss = clipped)", "loss = clipped, epochs = 2)"),
    ("loss = clipped)", "loss = clipped, minibatches = 2)"),
    ("max(score, G) > -5.0", "max(score, G) > 0.2"),
    ("rl.k3(", "rl.k2("),
    ('row.question)', 'row.answer)'),
    ('after(row.answer, "#### ")', "row.question"),
    ('chat("add", row.question)', "row.question"),
    ("0.9 * correct", "short * correct"),
    (', stop = ["777"]', ', stop = ["0"]'),
    ('jsonl("sums.jsonl")', 'jsonl("more.jsonl")'),
    ('jsonl("sums.jsonl")', 'mixture([jsonl("sums.jsonl"), jsonl("more.jsonl")], weights=[1,2])'),
    ("sync trainer -> generator", "sync trainer -> generator { every = 2 }"),
    ("token_mean(-gain, mask)", "seq_mean(mean(-gain, T, mask))"),
    ("token_mean(-gain, mask)", "token_mean(-gain, mask and behavior > -3.0)"),
]  # fmt: skip
STILL = [
    (('jsonl("sums.jsonl")', 'jsonl("same.jsonl")'),),
    (("  ratio = exp", "  w = exp"), ("ratio * adv, clip(ratio,", "w * adv, clip(w,"),
     ("abs(ratio - 1)", "abs(w - 1)")),
    (("forge 1\n", "forge 1\n# a comment\n"),),
]  # fmt: skip
"""nothing moves, and `diff` does not say that something does"""
NAMES = {
    "trainer": "titan", "reference": "titan", "generator": "vllm", "policy": "model",
    "sums": "dataset", "correct": "reward", "kind": "reward", "grade": "rubric",
    "schedule": "schedule", "run": "run", "checkpoint": "checkpoint", "logging": "logging",
}  # fmt: skip
SKIPPED = {"run.name", "trainer.mesh_name"}


def texts_of(type_: Type) -> list[str]:
    """Values of a type, as an override has them."""
    found = [*type_.words, *(["none"] if type_.optional else [])]
    by_base = {
        "bool": ["true", "false"], "int": ["2", "5"], "float": ["0.5", "0.25"],
        "duration": ["9s"], "interval": ["3"], "bytes": ["900MiB"], "str": ['"a"'],
    }  # fmt: skip
    return [*found, *by_base.get(type_.base, ())]


def overrides() -> list[str]:
    found = ["sums.shuffle=seed(3)", "trainer.optimizer.betas=[0.5, 0.6]", "eps=0.001", "beta=0.5"]
    found += ['generator.engine.extra.quantization="fp8"', "group=4"]
    for name, kind in NAMES.items():
        schema = SERVICES[kind] if kind in SERVICES else KINDS[kind]
        for setting in schema.settings:
            address = f"{name}.{setting.name}"
            found += [f"{address}={v}" for v in texts_of(setting.type) if address not in SKIPPED]
    return found


def numbers() -> list[str]:
    """The program with one of its numbers changed."""
    found = []
    for match in re.finditer(r"(?<![\w.\"])\d+(\.\d+)?(e-?\d+)?(?![\w.\"])", TEXT):
        if TEXT[match.start() - 6 : match.start()] == "forge ":
            continue
        more = "3" if match[0] in "12" else str(float(match[0]) * 2) if "." in match[0] else "2"
        found.append(TEXT[: match.start()] + more + TEXT[match.end() :])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("jobs")
    (found / "mine.py").write_text(PYTHON)
    (found / "inputs").mkdir()
    for name, rows in (("sums", ROWS), ("same", ROWS), ("more", ROWS[:400].rpartition("\n")[0])):
        (found / f"{name}.jsonl").write_text(rows)
        (found / "inputs" / f"{name}.jsonl").write_text(rows)
    (found / "inputs/mine.py").write_text(PYTHON)
    return found


@pytest.fixture(scope="module")
def base(folder: Path) -> tuple[Any, Any]:
    job = job_of(TEXT, folder)
    records = rehearse(job, folder)
    assert len(records) == STEPS
    assert records == rehearse(job, folder), "the same job gives the same steps"
    return job, records


def job_of(text: str, folder: Path, *overrides: str) -> Any:
    """The job of a program; None where it is refused."""
    found = load_text(text, "test.forge", folder=folder, overrides=overrides)
    if found.program is None or found.reporter.has_errors:
        return None
    made = lower(found.program, reporter=found.reporter, sources=found.sources, base_dir=folder)
    return None if made is None or found.reporter.has_errors else made.job


def moved(base: tuple[Any, Any], folder: Path, text: str, *sets: str) -> bool | None:
    """Whether a change changes the steps, which `diff` has to tell; None where it is refused."""
    other = job_of(text, folder, *sets)
    if other is None:
        return None
    job, records = base
    try:
        differs = rehearse(other, folder) != records
    except RunError:  # it ends before its third step, as the first job does not
        differs = True
    said = [change.impact for change in compare(job, other)]
    assert not differs or "numerics" in said, said
    return differs


@pytest.fixture(scope="module")
def supervised(folder: Path) -> tuple[Any, Any]:
    job = job_of(SUPERVISED, folder)
    records = rehearse(job, folder)
    assert len(records) == STEPS
    assert records == rehearse(job, folder), "the same job gives the same steps"
    return job, records


@pytest.mark.parametrize(("old", "new"), SUPERVISED_EDITS, ids=[new for _, new in SUPERVISED_EDITS])
def test_a_supervised_edit_that_moves_something(
    supervised: tuple[Any, Any], folder: Path, old: str, new: str
) -> None:
    assert moved(supervised, folder, changed(SUPERVISED, (old, new)))


@pytest.mark.parametrize(
    "edit",
    [("forge 1\n", "forge 1\n# a comment\n"), ("demos", "shown"), ("report nll", "report x")],
)
def test_a_supervised_edit_that_moves_nothing(
    supervised: tuple[Any, Any], folder: Path, edit: tuple[str, str]
) -> None:
    assert moved(supervised, folder, changed(SUPERVISED, edit)) is False


PIPELINES = Path(__file__).parents[2] / "pipelines"
GUESS = (PIPELINES / "guess_math.forge").read_text("utf-8")
GUESS = GUESS.replace('local("', 'local("forgedsl:').replace('jsonl("', 'jsonl("forgedsl:')
JUDGED = GUESS.replace(
    "reward early(r: Rollout) -> f32 = clamp(r.rewards.early, 0.0, 1.0)",
    """service judge : openai("small") { url = "http://localhost:9/v1" }
reward early = judge.score(prompt = "Grade {response} from 1 to 5", scale = [1, 5]) {
  effects = [net], timeout = 9s, retries = 0
}""",
)
PLAYED_EDITS = [
    (GUESS, ("sums.Guess(guesses = guesses)", "sums.Guess(guesses = guesses, hint = false)")),
    (GUESS, ("guesses : int = 3", "guesses : int = 2")),
    (GUESS, ("max_observation = 9", "max_observation = 5")),
    (GUESS, ("env = game, n = group, max_turns = guesses", "env = game, n = group, max_turns = 2")),
    (GUESS, ("tool_timeout = 5s", "tool_timeout = 5s, deadline = 9s")),
    (GUESS, ("on_error = 0.0\n", "on_error = drop\n")),
    (GUESS, ("r.rewards.early", "r.rewards.solved")),
    (GUESS, ("n = group", "n = 4")),
    (JUDGED, ("Grade {response} from", "Judge {response} from")),
    (JUDGED, ("scale = [1, 5]", "scale = [0, 5]")),
    (JUDGED, ('openai("small")', 'openai("large")')),
    (JUDGED, ("localhost:9", "localhost:8")),
    (JUDGED, ("retries = 0", "retries = 0, on_error = 0.5")),
]  # fmt: skip


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the environment of guess_math.forge."""
    found = tmp_path_factory.mktemp("played")
    (found / "environments").mkdir()
    text = (PIPELINES / "environments/sums.py").read_text("utf-8")
    (found / "environments/sums.py").write_text(text)
    return found


@pytest.mark.parametrize(("text", "edit"), PLAYED_EDITS, ids=[e[1][1] for e in PLAYED_EDITS])
def test_an_edit_of_an_environment_or_a_judge_is_numerics(
    beside: Path, text: str, edit: tuple[str, str]
) -> None:
    """No environment is rehearsed: these edits are known to change what is trained on."""
    job, other = job_of(text, beside), job_of(changed(text, edit), beside)
    if other is None:
        pytest.fail("no legal program has it")
    assert "numerics" in [change.impact for change in compare(job, other)]


def test_another_text_of_an_environment_is_numerics(beside: Path) -> None:
    job, path = job_of(GUESS, beside), beside / "environments/sums.py"
    path.write_text(path.read_text("utf-8") + "\n\nLIMIT = 3\n")
    found = compare(job, job_of(GUESS, beside))
    assert [change.impact for change in found] == ["numerics"]


EVERY = 1 if os.environ.get("FORGE_DEEP") == "1" else 13
OVERRIDES, NUMBERS = overrides()[::EVERY], numbers()[::EVERY]


@pytest.mark.parametrize(("old", "new"), EDITS, ids=[new for _, new in EDITS])
def test_an_edit_that_moves_something(
    base: tuple[Any, Any], folder: Path, old: str, new: str
) -> None:
    assert moved(base, folder, changed(TEXT, (old, new)))


@pytest.mark.parametrize("edits", STILL)
def test_an_edit_that_moves_nothing(
    base: tuple[Any, Any], folder: Path, edits: tuple[tuple[str, str], ...]
) -> None:
    text = changed(TEXT, *edits)
    assert moved(base, folder, text) is False
    found = compare(base[0], job_of(text, folder))
    assert {change.impact for change in found} <= {"cosmetic"}


@pytest.mark.parametrize("override", OVERRIDES)
def test_a_setting(base: tuple[Any, Any], folder: Path, override: str) -> None:
    if moved(base, folder, TEXT, override) is None:
        pytest.xfail("no legal program has it")


@pytest.mark.parametrize("text", NUMBERS, ids=range(len(NUMBERS)))
def test_a_number(base: tuple[Any, Any], folder: Path, text: str) -> None:
    if moved(base, folder, text) is None:
        pytest.xfail("no legal program has it")
