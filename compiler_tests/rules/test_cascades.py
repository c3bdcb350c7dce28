"""One mistake gives one message: what uses a broken declaration says nothing."""

import pytest

from forgedsl import api

TEXT = """
import "std/rl" as rl
model m { source = random(1), arch = qwen3("0.6B") }
dataset d { source = jsonl("d.jsonl"), prompt = row.question, target = row.answer }
service trainer : titan(m) { device = cpu }
service gen : vllm(m) { device = cpu, sampling.max_tokens = 16 }
reward near = rl.exact
loss mine(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  minimize token_mean(-exp(clamp(logprob - behavior, -9.0, 9.0)) * adv, mask)
}
flow train {
  p = d.draw(8)
  r = gen.sample(p, n = 4)
  s = near(r, p.target)
  b = replay(r, adv = rl.group_norm(s))
  trainer.step(b, loss = mine)
  sync trainer -> gen
}
schedule async { steps = 5, max_policy_age = 1 }
eval e { dataset = d, score = near, every = 3 }
profile x { gen.replicas = 2, d.shuffle = none }
"""


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("model m", "modl m", "F101"),
        ("dataset d", "datset d", "F101"),
        ("service gen", "servce gen", "F101"),
        ("service trainer", "servce trainer", "F101"),
        ("reward near", "rewrd near", "F101"),
        ("loss mine(", "los mine(", "F101"),
        ("model m { source = random(1), arch = qwen3(\"0.6B\") }", "model m = random(1)", "F119"),
        ("sampling.max_tokens = 16", "max_tokens = 16", "F103"),
        ("gen : vllm(m)", "gen : sglang(m)", "F101"),
        ("gen : vllm(m)", "gen : vllm(m, m)", "F114"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("profile", ["none", "x"])
def test_a_broken_declaration_is_one_message(old: str, new: str, code: str, profile: str) -> None:
    assert old in TEXT
    loaded = api.load_text(TEXT.replace(old, new), profile=profile)
    assert [d.code for d in loaded.reporter if d.severity == "error"] == [code]


def test_a_loss_of_a_module_that_is_not_there_is_one_message() -> None:
    text = TEXT.replace('"std/rl"', '"std/lr"').replace("loss = mine", "loss = rl.dapo")
    loaded = api.load_text(text, profile="none")
    assert [d.code for d in loaded.reporter if d.severity == "error"] == ["F115"]


def test_the_text_itself_is_right() -> None:
    assert list(api.load_text(TEXT, profile="x").reporter) == []


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (("model policy", "model polcy"), ("F101", "policy")),
        (("dataset sums {", "dataset sum {"), ("F101", "sums")),
        (("service generator", "service sampler"), ("F101", "generator")),
        (("reward correct", "reward corect"), ("F101", "correct")),
        (("score   = points", "scor   = points"), ("F101", "score")),
        (("{ dataset = sums", "{ data = sums"), ("F103", "data")),
        (("prompt = row", "promt = row"), ("F103", "promt")),
        (("norm(r: [G] f32)", "norm(r: float)"), ("F114", "float")),
        (("behavior: [B", "behaviour: [B"), ("F101", "behavior")),
        (("behavior", "behaviour"), ("F111", "batch   = replay(kept, adv = norm(score))")),
        (('as rl', "as rl (grup = 4)"), ("F103", "grup")),
    ],
)  # fmt: skip
def test_one_slip_gives_one_message(findings, edit, found):
    assert findings(edit) == [found]


def test_functions_that_only_call_each_other_are_unused(findings):
    fns = "fn f(x: f32) -> f32 = g(x)\nfn g(x: f32) -> f32 = f(x)\nfilter mixed"
    assert findings(("filter mixed", fns)) == [("F104", "f"), ("F104", "g")]


def test_a_function_that_a_loss_calls_is_used_with_those_it_calls(findings):
    fns = "fn f(x: f32) -> f32 = g(x)\nfn g(x: f32) -> f32 = 2.0 * x\nfilter mixed"
    assert findings(("filter mixed", fns), ("-ratio * adv", "-f(ratio) * adv")) == []
