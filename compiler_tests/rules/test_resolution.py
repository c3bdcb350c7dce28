"""Errors of resolution, each at the very word."""

import pytest

SCHEDULE = "schedule async { steps = 10, max_policy_age = 1, starve_timeout = 1min }"
CASES = [
    # names
    ("F101", [("= qwen3(", "= qwen4(")], "qwen4"),
    ("F101", [("titan(policy)", "titan(polcy)")], "polcy"),
    ("F101", [("mean(r, G)) /", "meen(r, G)) /")], "meen"),
    ("F101", [("sums.draw(8)", "sumz.draw(8)")], "sumz"),
    ("F101", [("rl.exact", "rl.exat")], "exat"),
    ("F101", [("row.answer", "rwo.answer")], "rwo"),
    ("F101", [("adv: [B] f32", "adv: [B] f23")], "f23"),
    ("F101", [("adv: [B] f32", "adv: [Q] f32")], "Q"),
    ("F101", [("param group : int", "param group : itn")], "itn"),
    ("F101", [("schedule async", "schedule asynk")], "asynk"),
    ("F102", [("forge 1", "forge 1\nparam group : int = 2")], "group"),
    ("F102", [("temperature = 1.0", "temperature = 1.0, temperature = 0.5")], "temperature"),
    ("F102", [("  score   =", "  rollout =")], "rollout"),
    ("F103", [("lr = 1e-4", "lr = 1e-4, betaz = [0.9, 0.95]")], "betaz"),
    ("F103", [("{ optimizer { lr = 1e-4 }", "{ lr = 1e-4")], "lr"),
    ("F103", [("schedule async", "schedule sync")], "max_policy_age"),
    ("F105", [("  prompt  =", "  a = generator.sample(late)\n  late = sums.draw(1)\n  prompt =")],
     "late"),
    # types and values
    ("F109", [("dtype = f32", 'dtype = 3')], "3"),
    ("F109", [("starve_timeout = 1min", "starve_timeout = 60")], "60"),
    ("F109", [("steps = 10", "steps = 1.5")], "1.5"),
    ("F109", [("n = group", "n = 0.5 + group")], "0.5 + group"),
    ("F109", [('jsonl("sums.jsonl")', "jsonl(3)")], "3"),
    ("F109", [("param group : int = 4", 'param group : int = "4"')], '"4"'),
    ("F109", [("dataset = sums", "dataset = policy")], "policy"),
    ("F113", [("steps = 10", "steps = 0")], "0"),
    ("F113", [("steps = 10", "steps = 1 / 0")], "1 / 0"),
    ("F113", [("param group : int = 4", "param group : float = 1e300 * 1e300")], "1e300 * 1e300"),
    ("F113", [("dtype = f32", "dtype = fp32")], "fp32"),
    ("F113", [("lr = 1e-4", "betas = [0.9, 1.5]")], "1.5"),
    # what is missing or too much
    ("F110", [("source = random(1), ", "")], "policy"),
    ("F110", [(", max_tokens = 16", "")], "generator"),
    ("F110", [("  prompt = row.question\n", "")], "sums"),
    ("F110", [("param group : int = 4", "param group : int")], "group"),
    ("F110", [(SCHEDULE, "")], "flow"),
    ("F114", [("clamp(logprob - behavior, -10.0, 10.0)", "clamp(logprob - behavior, 10.0)")],
     "clamp(logprob - behavior, 10.0)"),
    ("F114", [("random(1)", "random(1, 2)")], "2"),
    ("F114", [("random(1)", "random()")], "random()"),
    ("F114", [("rl.exact", "rl.exact(strpi = true)")], "strpi"),
    ("F114", [("trainer.step(batch, loss = pg)", "trainer.step(batch)")], "trainer.step(batch)"),
    # declarations
    ("F119", [("score = correct, on_truncated", "minimize 1\n  score = correct, on_truncated")],
     "minimize 1"),
    ("F119", [("  trainer.step", "  generator.sample(prompt)\n  trainer.step")],
     "generator.sample(prompt)"),
    ("F118", [("forge 1", "forge 2")], "forge 2"),
    ("S018", [("param group : int = 4", "param group : int = 4\nparam not : int = 4")], "not"),
    # imports
    ("F115", [('"std/rl" as rl', '"std/rll" as rl')], '"std/rll"'),
    ("F115", [("forge 1", 'forge 1\nimport "nowhere" as x')], '"nowhere"'),
    ("F115", [("forge 1", 'forge 1\nimport python "nowhere.py" as x')], '"nowhere.py"'),
    # cycles and requirements
    ("F117", [("param group : int = 4", "param group : int = group + 1")], "group"),
    ("F117", [("param group : int = 4", "param group : int = b\nparam b : int = group")], "group"),
    ("F120", [("param group : int = 4", "param group : int = 4\nrequire group > 4")],
     "require group > 4"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "edits", "where"), CASES)
def test_the_error_is_at_the_word(findings, code, edits, where):
    assert (code, where) in findings(*edits)


@pytest.mark.parametrize(("code", "edits", "where"), [c for c in CASES if c[2] != "n"])
def test_nothing_but_that_error_is_reported(findings, code, edits, where):
    found = findings(*edits)
    assert {c for c, _ in found} <= {code, "F110"} or code in {"F102", "F115"}


@pytest.mark.parametrize("name", ["run", "schedule", "cluster", "logging", "checkpoint"])
def test_a_kind_without_a_name_is_no_name(findings, name):
    """Found by fuzzing: `model run { ... }` took the place of the settings of the run."""
    edits = [("dataset sums {", f"dataset {name} {{")]
    assert ("S018", name) in findings(*edits)
