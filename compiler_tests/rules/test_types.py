"""Types as in section 7 of the language: for each part a mistake that gives exactly one message."""

import pytest

SCORE = "score   = points(rollout, prompt.target)"
KEEP = "rollout.keep(mixed(score))"
RATIO = "ratio = exp(clamp(logprob - behavior, -10.0, 10.0))"
LOSS = "minimize token_mean(-ratio * adv, mask)"
NORM = "(r - mean(r, G)) / (std(r, G) + 1e-6)"
FILTER = "std(score, G) > 0.0"

KINDS = [
    ("prompts for rollouts", [(SCORE, SCORE.replace("(rollout", "(prompt"))], "T703", "prompt"),
    ("a prompt for its target", [("prompt.target)", "prompt)")], "T703", "prompt"),
    ("rollouts for scores", [("norm(score)", "norm(kept)")], "T703", "kept"),
    ("rollouts for scores of a filter", [("mixed(score)", "mixed(rollout)")], "T703", "rollout"),
    ("a decision for rollouts", [(KEEP, "mixed(score)")], "T703", "kept"),
    ("scores for rollouts", [(KEEP, "score.keep(mixed(score))")], "T703", "kept"),
    ("rollouts for a batch", [("step(batch", "step(kept")], "T703", "kept"),
    ("rollouts for an advantage", [("adv = norm(score)", "adv = norm(score), w = kept")], "T703",
     "kept"),
    ("a decision for a number", [("norm(score)", "norm(mixed(score))")], "T703", "mixed(score)"),
    ("no such part", [("prompt.target)", "prompt.taget)")], "F101", "taget"),
    ("no target", [(", prompt.target)", ")")], "F114", "score   = points(rollout)"),
    ("a dataset without target", [("  target = row.answer\n", "")], "F110", "sums"),
    ("a model for a dataset", [("dataset = sums", "dataset = policy")], "F109", "policy"),
    ("a duration for a count", [("steps = 10", "steps = 10s")], "F109", "10s"),
    ("a size for a duration", [("starve_timeout = 1min", "starve_timeout = 1GiB")], "F109", "1GiB"),
]  # fmt: skip
AXES = [
    ("groups in a loss", [("adv: [B] f32", "adv: [G] f32")], "T704", "[G] f32"),
    ("pairs with sequences", [("adv: [B] f32", "adv: [P] f32")], "T701", "-ratio * adv"),
    ("tokens in an advantage", [("norm(r: [G] f32)", "norm(r: [P, T] f32)"), (NORM, "r")],
     "T704", "[P, T] f32"),
    ("no axis of that name", [("std(r, G)", "std(r, Z)")], "F101", "Z"),
    ("tokens in a filter", [(FILTER, "sum(score, T, score > 0.0) > 0.0")], "T701", "score"),
    ("a decision for each sibling", [(FILTER, "score > 0.0")], "T701", "score > 0.0"),
    ("ragged without a mask", [(LOSS, "minimize seq_mean(-mean(ratio, T) * adv)")], "L401",
     "mean(ratio, T)"),
    ("across the batch", [(LOSS, "minimize mean(mean(-ratio * adv, T, mask), B)")], "L403",
     "mean(mean(-ratio * adv, T, mask), B)"),
    ("a token value for each sequence", [(LOSS, "minimize seq_mean(-ratio * adv)")], "L401",
     "-ratio * adv"),
    ("a scalar as the type of an advantage", [("-> [G] f32", "-> str")], "T701", "str"),
    ("a field of another shape", [("adv: [B] f32", "adv: [B, T] f32")], "T701", "[B, T] f32"),
]  # fmt: skip
DTYPES = [
    ("a truth value as a number", [(LOSS, "minimize token_mean(-ratio * adv * mask, mask)")],
     "T702", "mask"),
    ("a number as a mask", [(LOSS, "minimize token_mean(-ratio * adv, ratio)")], "T702", "ratio"),
    ("text as a bound", [(RATIO, RATIO.replace("10.0))", '"10"))'))], "T702", '"10"'),
    ("nothing as a bound", [(RATIO, RATIO.replace("10.0))", "none))"))], "T702", "none"),
    ("a number as a decision", [(FILTER, "std(score, G)")], "T702", "std(score, G)"),
    ("a decision as an advantage", [(NORM, "r > mean(r, G)")], "T702", "r > mean(r, G)"),
    ("a truth value as the type of an advantage", [("-> [G] f32", "-> [G] bool")], "T702",
     "[G] bool"),
    ("counts as the type of an advantage", [("-> [G] f32", "-> [G] i64")], "T702", "[G] i64"),
    ("counts as scores", [("norm(r: [G] f32)", "norm(r: [G] i64)")], "T702", "[G] i64"),
    ("text as the type of a filter", [("-> bool", "-> str")], "T702", "str"),
    ("a result of a loss", [("mask: [B, T] bool) {", "mask: [B, T] bool) -> str {")], "T702",
     "str"),
    ("a number as a truth value of a function",
     [("loss pg", "fn half(x: float) -> bool = x / 2\nloss pg"),
      (LOSS, "minimize token_mean(-ratio * adv * half(1.0), mask)")], "T702", "bool"),
    ("no such dtype", [("adv: [B] f32", "adv: [B] f23")], "F101", "f23"),
]  # fmt: skip
GRADIENT = [
    ("nothing trained", [(RATIO, "ratio = exp(clamp(stop(logprob) - behavior, -9.0, 9.0))")],
     "L404", "token_mean(-ratio * adv, mask)"),
    ("gradient into data", [("behavior: [B, T]", "behavior: diff [B, T]")], "L406",
     "diff [B, T] f32"),
    ("gradient into bounds", [(LOSS, "minimize token_mean(-clip(ratio, 0.8, ratio) * adv, mask)")],
     "T702", "ratio"),
    ("a mask of the policy", [(LOSS, "minimize token_mean(-ratio * adv, mask and ratio < 2.0)")],
     "L417", "mask and ratio < 2.0"),
    ("no aggregator", [(LOSS, "minimize -ratio * adv")], "L416", "-ratio * adv"),
]  # fmt: skip
MEASURES = [
    ("temperatures", [("temperature = 1.0", "temperature = 0.7")], "L411", "logprob - behavior"),
    ("temperature of the trainer", [("titan(policy) {", "titan(policy) { temperature = 2.0,")],
     "L411", "logprob - behavior"),
]  # fmt: skip
VERSIONS = [
    ("stale without a ratio", [(RATIO, "ratio = logprob"), ("behavior: [B, T] f32, ", "")],
     "A303", "pg"),
    ("no bound", [("max_policy_age = 1, ", "")], "A301", None),
    ("a bound out of reach", [("max_policy_age = 1", "max_policy_age = 0")], "A302", "0"),
    ("weights nobody sends", [("  sync trainer -> generator { every = 1 }\n", "")], "F107",
     "rollout = generator.sample(prompt, n = group)"),
]  # fmt: skip
INTERVALS = [
    ("an exponential", [("clamp(logprob - behavior, -10.0, 10.0)", "logprob - behavior")], "L405",
     "exp(logprob - behavior)"),
    ("a logarithm", [(LOSS, "minimize token_mean(-log(ratio - 1.0) * adv, mask)")], "L407",
     "log(ratio - 1.0)"),
    ("a quotient", [(LOSS, "minimize token_mean(-ratio / adv, mask)")], "L407", "adv"),
    ("a constant reward", [("reward correct = rl.exact",
                            "reward correct(r: Rollout) -> f32 = clamp(1.0, 0.0, 1.0)"),
                           ('import "std/rl" as rl\n', "")],
     "R501", "correct"),
]  # fmt: skip
SHAPES = [
    ("heads", [("max_tokens = 16 }", "max_tokens = 16 }, procs = 3, parallel.tp = 3")], "P204",
     "3"),
    ("completion and context", [("max_tokens = 16", "max_tokens = 65")], "D605", "65"),
    ("degrees", [("titan(policy) { optimizer", "titan(policy) { procs = 4, parallel.dp_shard = 3, "
                  "optimizer")], "P201", "3"),
    ("a parameter of a loss", [("loss = pg", "loss = rl.dr_grpo")], "F114", "rl.dr_grpo"),
    ("an arithmetic of params", [("n = group", "n = group / 3")], "F109", "group / 3"),
]  # fmt: skip
EVERY = KINDS + AXES + DTYPES + GRADIENT + MEASURES + VERSIONS + INTERVALS + SHAPES


@pytest.mark.parametrize(
    ("edits", "code", "where"), [row[1:] for row in EVERY], ids=[row[0] for row in EVERY]
)
def test_one_mistake_gives_one_message(findings, edits, code, where):
    ((found, text),) = findings(*edits)
    assert (found, text) == (code, where or text)


@pytest.mark.parametrize("declared", ["str", "bool", "i64", "[G] f32", "[B] f32", "Rollout"])
def test_a_reward_declares_a_number(findings, declared):
    reward = f"reward correct(r: Rollout) -> {declared} = clamp(r.num_tokens / 16, 0.0, 1.0)"
    edits = [("reward correct = rl.exact", reward), ('import "std/rl" as rl\n', "")]
    assert findings(*edits) == [("F109", declared)]


def test_a_number_of_a_reward_is_f32_or_float(findings):
    reward = "reward correct(r: Rollout) -> float = clamp(r.num_tokens / 16, 0.0, 1.0)"
    assert not findings(("reward correct = rl.exact", reward), ('import "std/rl" as rl\n', ""))


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("steps = 10", "steps = 1e23", "1e23"),
        ("lr = 1e-4", "betas = [0.9]", "[0.9]"),
        ("lr = 1e-4", "betas = [0.9, 1.0]", "1.0"),
        ("temperature = 1.0", "top_p = 0.0", "0.0"),
        ("max_tokens = 16", "max_tokens = 16, min_tokens = 17", "17"),
        ("starve_timeout = 1min", "starve_timeout = 0s", "0s"),
        ("rl.exact", "rl.exact { timeout = 0s }", "0s"),
        ('jsonl("sums.jsonl")', 'mixture([hf("a/b")], weights = [0.0])', "0.0"),
        (
            'jsonl("sums.jsonl")',
            'mixture([hf("a/b")], weights = [1.0, 2.0])',
            'mixture([hf("a/b")], weights = [1.0, 2.0])',
        ),
    ],
)
def test_a_value_without_a_meaning_is_refused(findings, old, new, place):
    assert ("F113", place) in findings((old, new))
