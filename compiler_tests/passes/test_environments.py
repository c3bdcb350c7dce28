"""Environments in the language: what is accepted, what it becomes in a job, what is refused."""

import hashlib
from pathlib import Path

import pytest
from forge_texts import changed, job_of, loaded, plan_of

from forgedsl.graph.dataflow import build
from forgedsl.lower.lock import lock_text
from forgedsl.plan.plan import plan
from forgedsl.plan.sizes import step_tokens
from forgedsl.sizes.hosts import Host

DESK = '''
from forgedsl.environment import Environment, Step, tool
from forgedsl.mcp import MCPTools


class Base(Environment):
    parts = ("found", "polite")


class Desk(Base):
    def __init__(self, rows: int, *, kind: str = "a") -> None:
        pass

    @tool
    def lookup(self, key: str, many: list[str]) -> str:
        """The price of a thing."""


class Served(MCPTools):
    command = ("python", "server.py")
    parts = ("found", "polite")


class Bare(Environment):
    @tool
    def lookup(self, key):
        """The price of a thing."""


def make():
    raise SystemExit("the compiler executes nothing")


raise SystemExit("the compiler executes nothing")
'''
SHOP = "environment shop = desk.Desk(rows = 40) { procs = 2, tool_timeout = 5s, on_error = 0.0 }"
RUBRIC = "rubric grade"
FUND = "(r: Rollout) -> f32 = clamp(r.rewards.fund, 0.0, 1.0)"
PLAY = "generator.play(prompt, env = shop, n = 8, max_turns = 6)"
TEXT = f"""forge 1
import "std/rl" as rl
import python "desk.py" as desk
model policy {{ source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B"), context = 4096 }}
dataset tasks {{ source = hf("a/b"), prompt = row.question, max_prompt_tokens = 512 }}
service trainer   : titan(policy) {{ batch {{ seq_len = 4096, rows = 4 }} }}
service generator : vllm(policy) {{ sampling.max_tokens = 256 }}
{SHOP}
reward found(r: Rollout) -> f32 = clamp(r.rewards.found, 0.0, 1.0) if r.ended == "done" else 0.0
rubric grade {{ score = found, on_truncated = 0.0 }}
flow train {{
  prompt  = tasks.draw(16)
  rollout = {PLAY}
  score   = grade(rollout)
  batch   = replay(rollout, adv = rl.mean_baseline(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}}
schedule async {{ steps = 5, max_policy_age = 1 }}
eval held {{ dataset = tasks, env = shop, max_turns = 3, score = grade, every = 5, limit = 8 }}
"""


def lowered(folder: Path, *edits: tuple[str, str]):
    """(job or None, messages of errors and warnings by code)."""
    (folder / "desk.py").write_text(DESK, encoding="utf-8")
    job, found = job_of(TEXT, *edits, folder=folder)
    return job, [(d.code, d.message) for d in found if d.severity in ("error", "warning")]


def test_a_rollout_without_an_environment_is_told_how_to_play(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(DESK, encoding="utf-8")
    _, found = job_of(TEXT, (PLAY, "generator.sample(prompt, n = 8)"), folder=tmp_path)
    written = "`generator.play(prompt, env = shop)`"
    helps = [each.help for each in found if each.code == "F101"]
    assert helps == [f"`rollout` is sampled without an environment: write {written}"]


def test_an_environment_is_part_of_the_job(tmp_path: Path) -> None:
    job, _ = lowered(tmp_path)
    shop = job.environments["shop"]
    assert (shop.type_name, shop.args, shop.path) == ("Desk", {"rows": 40}, "inputs/desk.py")
    assert (shop.tools, shop.parts) == (("lookup",), ("found", "polite"))
    assert (shop.procs, shop.tool_timeout, shop.deadline, shop.on_error) == (2, 5.0, None, 0.0)


@pytest.mark.parametrize(
    ("written", "value"), [('["a", "b"]', ["a", "b"]), ("[1, 2.5]", [1, 2.5]), ("[]", [])]
)
def test_an_argument_of_a_class_may_be_a_list(tmp_path: Path, written: str, value: object) -> None:
    listed = (
        "class Desk(Base):\n    def __init__(self, rows: int, *, kind: str",
        "class Desk(Base):\n    def __init__(self, rows: list[str], *, kind: str",
    )
    (tmp_path / "listed.py").write_text(DESK.replace(*listed), "utf-8")
    job, said = lowered(tmp_path, ("desk.py", "listed.py"), ("rows = 40", f"rows = {written}"))
    assert job is not None, said
    assert job.environments["shop"].args == {"rows": value}


@pytest.mark.parametrize("there", [True, False])
def test_the_script_of_an_mcp_server_is_an_input_of_the_run(tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "server.py").write_text("serve()\n")
    job, _ = lowered(tmp_path, ("desk.Desk(rows = 40)", "desk.Served"))
    sha256 = hashlib.sha256(b"serve()\n").hexdigest()
    assert job.environments["shop"].scripts == ({"inputs/server.py": sha256} if there else {})
    assert (sha256 in lock_text(job)) == there


GIB = 2**30
WIDE = Host(hosts=3, gpus=0, gpu=None, gpu_memory=0, cpus=8, memory=256 * GIB)


def planned(folder: Path, procs: int, *overrides: str):
    (folder / "desk.py").write_text(DESK, encoding="utf-8")
    return plan_of(TEXT, f"shop.procs={procs}", *overrides, host=WIDE, base_dir=folder)


def test_a_plan_counts_processes_of_environments_and_their_tokenizers(tmp_path: Path) -> None:
    wide = ("launcher=process", "cluster.hosts=3", "trainer.hosts=2", "trainer.batch.rows=1")
    made, _ = planned(tmp_path, 250, *wide)
    host = made.memory.stores[-1]
    assert host.name == "memory of host 2"  # that of the generator, away from the trainer
    assert host.parts["shop"] == pytest.approx(250 * (0.15 * GIB + 700 * 151_936), rel=1e-6)


def test_an_environment_that_nothing_plays_in_takes_no_memory(tmp_path: Path) -> None:
    made, _ = planned(tmp_path, 2)
    text = changed(TEXT, (SHOP, f"{SHOP}\n{SHOP.replace('shop', 'other')}"))
    with_other, _ = plan_of(text, host=WIDE, base_dir=tmp_path)
    assert with_other.memory.stores[-1].parts == made.memory.stores[-1].parts


def test_too_many_processes_of_an_environment_name_how_many_fit(tmp_path: Path) -> None:
    made, said = planned(tmp_path, 2000)
    assert made is None
    assert [(d.code, d.severity) for d in said] == [("P205", "error")]
    fitting = int(said[0].help.removeprefix("`shop.procs = ").removesuffix("` fits"))
    assert planned(tmp_path, fitting)[1] == []


def test_a_play_is_a_sample_that_knows_its_environment(tmp_path: Path) -> None:
    job, _ = lowered(tmp_path)
    node = next(node for node in job.nodes if node.op == "sample")
    assert (node.target, node.n) == ("generator", 8)
    assert (node.env, node.max_turns, node.longest) == ("shop", 6, 4096)
    held = job.evals["held"]
    assert (held.env, held.max_turns, held.longest) == ("shop", 3, 4096)


def test_a_plan_counts_the_tokens_of_all_rows(tmp_path: Path) -> None:
    assert lowered(tmp_path)[0].environments["shop"].history == "append"
    edits = [("max_tokens = 256", "max_tokens = 32"), ("5s,", "5s, max_observation = 16,")]
    ours = [("5s, max_observation", "5s, history = template, max_observation")]
    job, said = lowered(tmp_path, *edits, *ours)
    assert said == []
    assert job.environments["shop"].history == "template"
    # 512 + 6 x 32 + 5 x 16 in one row; the prompt, 32 x turns and 16 x (turns - 1) in six
    assert [step_tokens_of(tmp_path, *e) for e in (edits, edits + ours)] == [128 * 784, 128 * 3984]


def step_tokens_of(folder: Path, *edits: tuple[str, str]) -> float:
    found = loaded(changed(TEXT, *edits), folder=folder, host=WIDE)
    graph = build(found.program, reporter=found.reporter)
    made = plan(found.program, graph, reporter=found.reporter, host=WIDE, base_dir=folder)
    return step_tokens(made.request, graph)


def test_parts_and_ends_are_read_in_a_reward(tmp_path: Path) -> None:
    job, said = lowered(tmp_path)
    assert said == []
    assert 'r.rewards["found"]' in job.program
    assert 'r.ended == "done"' in job.program


@pytest.mark.parametrize(
    ("edit", "code", "part"),
    [
        (("rows = 40", 'rows = "many"'), "F109", "`rows` of `Desk` must be an integer"),
        (("desk.Desk(rows = 40)", "desk.Desk"), "F114", "`Desk` needs `rows`"),
        (("rows = 40", "row = 40"), "F114", "no parameter `row`"),
        (("desk.Desk(", "desk.Dusk("), "X801", "no environment `Dusk`"),
        (("desk.Desk(rows = 40)", "desk.make"), "X801", "no environment `make`"),
        (("desk.Desk(rows = 40)", "desk.Bare"), "X802", "parameter `key` that has no annotation"),
        (("procs = 2", "workers = 2"), "F103", "no setting `workers`"),
        (("env = shop,", "env = shap,"), "F101", "there is no environment"),
        (("env = shop, n = 8", "env = policy, n = 8"), "F109", "`policy` is a model"),
        (("env = shop, n = 8", "n = 8"), "F114", "needs its env"),
        (("max_turns = 6)", "max_turns = 0)"), "F113", "`max_turns` must be at least 1"),
        ((", max_turns = 6", ""), "D620", "a trajectory in `shop` may never end"),
        ((", max_turns = 3", ""), "D620", "a trajectory in `shop` may never end"),
        (("env = shop, max_turns = 3", "max_turns = 3"), "F113", "no effect without `env`"),
        (("max_tokens = 256", "max_tokens = 2k"), "D621", "13792 tokens"),
        (
            ("5s,", "5s, history = template,"),
            "D621",
            "can have 12288 tokens, but a trainer row holds 4096",
        ),
        (("5s,", "5s, history = rewritten,"), "F113", "history"),
        (("r.rewards.found", "r.rewards.fund"), "F101", "has a reward part `fund`"),
        (("r.rewards.found", "r.rewards"), "F109", "but a record of reward parts"),
        ((PLAY, "generator.sample(prompt, n = 8)"), "F101", "has a reward part `found`"),
        (
            (RUBRIC, f"reward odd{FUND} {{ monitor = true }}\n{RUBRIC}"),
            "F101",
            "a reward part `fund`",
        ),
        (
            (RUBRIC, f"reward odd{FUND}\n{RUBRIC}", "score = grade,", "score = odd,"),
            "F101",
            "`shop`, the environment of eval `held`, has no reward part `fund`",
        ),
        (("env = shop, max_turns = 3, ", ""), "F101", "eval `held` uses no environment that"),
        (
            (
                "reward found(",
                f"fn part{FUND}\nreward found(",
                "clamp(r.rewards.found",
                "clamp(part(r)",
            ),
            "F101",
            "has a reward part `fund`",
        ),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, edit, code: str, part: str) -> None:
    _, said = lowered(tmp_path, *zip(edit[::2], edit[1::2], strict=True))
    assert {found for found, message in said if part in message} == {code}, said


def test_monitors_are_no_part_of_an_eval(tmp_path: Path) -> None:
    monitor = (
        f"reward odd{FUND.replace('fund', 'found')} {{ monitor = true }}\nreward b = rl.exact\n"
    )
    edits = (RUBRIC, monitor + RUBRIC), ("env = shop, max_turns = 3, score = grade", "score = b")
    assert lowered(tmp_path, *edits)[1] == []


def test_a_deadline_ends_an_environment_too(tmp_path: Path) -> None:
    edits = (", max_turns = 6", ""), ("procs = 2", "procs = 2, deadline = 60s")
    assert lowered(tmp_path, *edits)[1] == []


def test_tools_of_a_server_are_those_of_an_environment(tmp_path: Path) -> None:
    job, said = lowered(tmp_path, ("desk.Desk(rows = 40)", "desk.Served"))
    assert said == []
    assert (job.environments["shop"].type_name, job.environments["shop"].tools) == ("Served", ())


def test_a_server_has_tools_that_a_model_has_to_call(tmp_path: Path) -> None:
    model = 'source = random(1), arch = phi3("14B"), tokenizer = hf("a/b")'
    (diagnostic,) = lowered(
        tmp_path,
        ("desk.Desk(rows = 40)", "desk.Served"),
        ('source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B")', model),
    )[1]
    assert diagnostic == (
        "D622", "the form in which models of `phi3` call tools is not known, but `shop` has tools "
        "of a server"
    )  # fmt: skip


@pytest.mark.parametrize("given", ["tool_calls = hermes", 'chat_template = "[TOOL_CALLS]"'])
def test_the_file_may_say_how_a_model_calls_tools(given: str, tmp_path: Path) -> None:
    model = f'source = random(1), arch = phi3("14B"), tokenizer = hf("a/b"), {given}'
    _, said = lowered(
        tmp_path,
        ("desk.Desk(rows = 40)", "desk.Served"),
        ('source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B")', model),
    )
    assert "D622" not in {code for code, _ in said}
