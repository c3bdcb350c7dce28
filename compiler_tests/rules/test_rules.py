"""Each rule fires on the fault and is silent on the repaired program (which is BASE)."""

import pytest

FIRES = [
    ("F104", [("score = correct, on", "score = 1.0, on"),
              ("score = correct, every", "score = points, every")],
     "correct"),
    ("F104", [("param group : int = 4", "param group : int = 4\nparam extra : int = 1")], "extra"),
    ("F104", [("rubric points", "reward other = rl.contains\nrubric points")], "other"),
    ("A303", [("ratio = exp(clamp(logprob - behavior, -10.0, 10.0))", "ratio = logprob"),
              ("behavior: [B, T] f32, ", "")], "pg"),
    ("A304", [("{ every = 1 }", "{ on_swap = keep }"),
              ("ratio = exp(clamp(logprob - behavior, -10.0, 10.0))", "ratio = logprob"),
              ("behavior: [B, T] f32, ", "")], "keep"),
    ("A306", [(", starve_timeout = 1min", "")], "kept    = rollout.keep(mixed(score))"),
    ("D601", [("max_tokens = 16", "max_tokens = 16, top_p = 0.95")], "0.95"),
    ("D601", [("max_tokens = 16", "max_tokens = 16, top_k = 20")], "20"),
    ("D601", [("max_tokens = 16", "max_tokens = 16, min_p = 0.1")], "0.1"),
    ("D602", [("temperature = 1.0", "temperature = 0.0")], "0.0"),
    ("D604", [('source = jsonl("test.jsonl"), ', "")], "held_out"),
    ("D604", [('"test.jsonl"', '"sums.jsonl"')], "held_out"),
    ("R504", [(", on_truncated = 0.0", "")], "points"),
    ("R509", [("std(r, G) + 1e-6", "std(r, G)")], "(std(r, G))"),
    ("R509", [("param group : int = 4", ""), ("n = group", "n = 1")], "1"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "edits", "where"), FIRES)
def test_a_rule_fires_once_at_the_fault(findings, code, edits, where):
    assert [f for f in findings(*edits) if f[0] == code] == [(code, where)]


def test_all_rules_are_silent_on_the_sound_program(findings):
    assert findings() == []


@pytest.mark.parametrize("asked", [None, "none", "big"])
def test_unused_means_unused_under_every_profile(findings, asked):
    profile = "\nprofile big { trainer.procs = wide }\n"
    edits = [("param group : int = 4", "param group : int = 4\nparam wide : int = 2" + profile)]
    assert findings(*edits, profile=asked) == []


@pytest.mark.parametrize("asked", [None, "none", "big"])
def test_a_finding_that_all_profiles_have_is_told_under_one_too(findings, asked):
    edits = [
        ("param group : int = 4", "param group : int = 4\nparam extra : int = 1"),
        ("forge 1\n", "forge 1\nprofile big { trainer.procs = 2 }\n"),
        ("{ every = 1 }", "{ every = 1000 }"),
    ]
    assert {code for code, _ in findings(*edits, profile=asked)} >= {"F104", "A310"}


def test_one_mistake_gives_one_message(findings):
    assert findings(("adv = norm(score)", "adv = norn(score)")) == [("F101", "norn")]
    assert findings(("ratio = exp(", "ratio = exq(")) == [("F101", "exq")]
    assert findings(("source = random(1)", "source = randm(1)")) == [("F101", "randm")]


@pytest.mark.parametrize(
    "comment",
    ["top_p = 0.9 }  # forge: allow[D601] nucleus on purpose", "top_p = 0.9 }"],
)
def test_an_error_that_is_usually_wrong_can_be_suppressed_with_a_reason(findings, comment):
    edits = [("max_tokens = 16 }", f"max_tokens = 16, {comment}")]
    if "allow" not in comment:
        edits += [("  sampling {", "  # forge: allow[D601] nucleus on purpose\n  sampling {")]
    assert findings(*edits) == []


def test_a_suppression_needs_a_reason(findings):
    edits = [("max_tokens = 16 }", "max_tokens = 16, top_p = 0.9 } # forge: allow[D601]")]
    assert findings(*edits) == [("N902", "# forge: allow[D601]")]


def test_the_words_that_editors_put_in_place_of_a_reason_are_none(findings):
    comment = "# forge: allow[D601] why this is correct"
    edits = [("max_tokens = 16 }", f"max_tokens = 16, top_p = 0.9 }} {comment}")]
    assert findings(*edits) == [("N902", comment)]


def test_a_suppression_that_matches_nothing_is_reported(findings):
    edits = [("steps = 10,", "steps = 10, # forge: allow[A303] why\n")]
    edits = [("forge 1", "forge 1 # forge: allow[A303] why")]
    assert findings(*edits) == [("N903", "# forge: allow[A303] why")]


def test_a_suppression_of_what_differs_from_machine_to_machine_may_match_nothing(findings):
    assert findings(("forge 1", "forge 1 # forge: allow[P210] made later")) == []


@pytest.mark.parametrize("profile", [None, "none", "sharp"])
def test_a_suppression_for_another_profile_is_left_alone(findings, profile):
    edits = [
        ("forge 1\n", "forge 1\nprofile sharp { trainer.temperature = 0.5 }\n"),
        ("  ratio = exp(", "  # forge: allow[L411] the point of it\n  ratio = exp("),
    ]
    assert findings(*edits, profile=profile) == []


def test_a_fixed_error_cannot_be_suppressed(findings):
    edits = [("temperature = 1.0, max_tokens = 16 }",
              "temperature = 0.0, max_tokens = 16 } # forge: allow[D602] I insist")]  # fmt: skip
    assert [code for code, _ in findings(*edits)] == ["D602", "N903"]
