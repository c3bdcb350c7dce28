"""Mistakes of people who come from Python and TRL: one message each, with a remedy that fits."""

from pathlib import Path

import pytest

from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile

TEXT = """\
import "std/rl" as rl
param group : int = 8
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl")
  prompt = row.question
  target = after(row.answer, "#### ")
}
service trainer : titan(policy) {
  device    = cpu
  optimizer { lr = 2e-4, warmup = 5 }
  batch     { seq_len = 64, rows = 64 }
}
service generator : vllm(policy)  { device = cpu, sampling { max_tokens = 16 } }
service reference : titan(policy) { device = cpu }
reward correct = rl.math_equal()
reward length(r: Rollout) -> f32 = -clamp(r.num_tokens / 16 * 4 - 3, 0.0, 1.0)
rubric grade { score = correct + 0.1 * length, on_truncated = -0.5 }
advantage norm(r: [G] f32) -> [G] f32 = (r - mean(r, G)) / (std(r, G) + 1e-6)
filter mixed(score: [G] f32) -> bool = std(score, G) > 0.0
loss pg(
  logprob: diff [B, T] f32, behavior: [B, T] f32, ref: [B, T] f32, adv: [B] f32, mask: [B, T] bool,
) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  gain  = min(ratio * adv, clip(ratio, 0.8, 1.28) * adv)
  minimize token_mean(-gain + 0.01 * rl.k3_unbiased(logprob, ref, ratio), mask)
  report high = token_mean(ratio > 1.28, mask)
}
flow train {
  prompt  = sums.draw(16)
  rollout = generator.sample(prompt, n = group)
  score   = grade(rollout, prompt.target)
  kept    = rollout.keep(mixed(score))
  batch   = replay(kept, adv = norm(score), ref = reference.logprobs(kept))
  trainer.step(batch, loss = pg)
  sync trainer -> generator
}
schedule async { steps = 50, max_policy_age = 1, starve_timeout = 5min }
profile small when cluster.gpus == 0 { schedule.steps = 5 }
"""
MINIMIZE = "minimize token_mean(-gain + 0.01 * rl.k3_unbiased(logprob, ref, ratio), mask)"
PROMPT = "prompt = row.question"

MISTAKES = [
    # of the text
    ("  minimize", "  minimise", "S001", "minimise", "did you mean `minimize`?"),
    ("  sync t", "  synk t", "S001", "synk", "did you mean `sync`?"),
    ("import \"std", "imprt \"std", "S001", "imprt", "did you mean `import`?"),
    ("import \"std/rl\" as rl", "from std import rl", "S027", "from",
     'import the whole module: `import "std/rl" as rl`'),
    ("report high = token_mean", "report token_mean", "S001", "token_mean",
     "`report NAME = token_mean(...)`; the name is a column of metrics.jsonl"),
    ("length(r: Rollout) -> f32", "length(r)", "S025", "r",
     "write a parameter of a reward as `r: Rollout`"),
    (PROMPT, "prompt = lower(row.question)[0]", "S001", "[",
     "only rows, columns and their parts can be indexed: `row.messages[0].content`"),
    (PROMPT, "prompt = row.question[0:20]", "S001", ":", ""),
    (PROMPT, PROMPT + "\n  target = { a = row.answer }", "S021", "{",
     "`target` takes one value, `record(answer = row.a, tests = row.t)`"),
    (PROMPT, "prompt = chat(none, record(row.question))", "F114", "row.question",
     "`record(question = row.question, tests = row.meta.tests)`"),
    (MINIMIZE, "minimize token_mean(-gain[0], mask)", "F119", "gain[0]",
     "to reduce an axis, name it: `mean(x, G)`, `token_mean(x, mask)`"),
    (MINIMIZE, MINIMIZE.replace("minimize", "report total ="), "F110", "pg",
     "add `minimize EXPRESSION` with the value to minimize, such as `minimize "
     "token_mean(-logprob * adv, mask)`"),
    ('after(row.answer, "#### ")', 'row.answer.split("#### ")[1]', "S001", "[",
     '`after(text, "#### ")` returns the text after it'),
    (MINIMIZE, "minimize (-gain * mask).sum()", "S023", ".",
     "numbers have functions, not methods: `sum(x, T, mask)`"),
    ("batch   = replay", "batch == replay", "S001", "==", ""),
    (PROMPT, 'prompt = f"Q: {row.question}"', "S001", 'f"Q: {row.question}"',
     'to join texts, use `+`: `"Q: " + row.question`; convert numbers with `text(row.id)`'),
    ("-> generator", "-> generator every 2", "S001", "every",
     "`sync trainer -> generator { every = 1 }`"),
    ("steps = 50", "steps = 50 batches", "S007", "50 batches",
     "units are ms s min h d KiB MiB GiB TiB k M"),
    ("flow train {", "flow train", "S001", "\n", "`flow train { ... }`"),
    ("ratio > 1.28", "ratio > 1.28 or < 0.8", "S001", "<",
     "write both sides of each comparison: `x > 1.2 or x < 0.8`"),
    ('import "std/rl" as rl', "import python rewards", "S001", "rewards",
     '`import python "rewards.py" as rewards`'),
    ('import "std/rl" as rl', "import rewards", "S001", "rewards",
     '`import python "rewards.py" as rewards`, or `import "rewards" as rewards` of a .forge file'),
    ("  gain  = min(", "  ratio += 1\n  gain = min(", "S001", "+",
     "use another name: `ratio2 = ratio + ...`"),
    ("(score: [G] f32)", "(score: [G])", "S001", ")", "`score: [G] f32`"),
    ("-> f32 = -clamp(r.num_tokens / 16 * 4 - 3, 0.0, 1.0)",
     "-> f32 {\n  x = r.num_tokens\n  1.0\n}", "S001", "1.0", "end the block with `return`"),
    ("-clamp(r.num_tokens / 16 * 4 - 3, 0.0, 1.0)", "1.0 if r.target in r.response else 0.0",
     "S001", "in",
     ('to find a pattern, write `matches(r.response, "a|b")`; for anything else, write a Python '
      'reward')),
    ("reward length", "reward my-length", "S001", "my-length", "`my_length`"),
    ("profile small when", "colocate = trainer, generator\nprofile small when", "S001", ",",
     "write a list in brackets: `colocate = [trainer, ...]`"),
    ("profile small when", "assert group > 1\nprofile small when", "S027", "assert",
     "to check a condition, write `require group >= 2`"),
    ("param group", "param gr\u00f6\u00dfe", "S002", "\u00f6",
     "names consist of a-z, A-Z, 0-9 and `_`; text needs quotes"),
    # of names
    ("profile small when", "seed = 3\nprofile small when", "F119", "seed",
     "here it is `run.seed`; every completion derives a seed of its own from it"),
    ("profile small when", 'wandb { project = "x" }\nprofile small when', "F101", "wandb",
     "here it is `logging { wandb { project = ... } }`"),
    ("profile small when", "cluster { nodes = 2 }\nprofile small when", "F103", "nodes",
     "here it is `hosts` of the cluster"),
    ("profile small when", "launcher = slurm\nprofile small when", "F114", "slurm",
     "`slurm(partition = ...)`: a Slurm allocation"),
    ("lr = 2e-4", 'lr = env("LR")', "F101", "env",
     "here it is an override of a parameter: `NAME=VALUE`"),
    ("sample(prompt, n", "sample(prompt, env = game, n", "F114", "env",
     "environments are played: `generator.play(prompt, env = NAME, n = 8)`"),
    ("generator.sample(prompt,", "generator.sample(group,", "F109", "group",
     "name the result of a statement above"),
    ("seq_len = 64", "seq_len = 16", "D605", "16",
     "set `batch.seq_len` to 16 plus the tokens of the longest prompt, or lower "
     "`sampling.max_tokens`"),
    ("loss = pg)", "loss = pg, beta = 0.1)", "F114", "beta",
     "here it is a parameter of the loss: `loss = rl.grpo(beta = 0.1)`"),
    ("profile small when", "checkpoint every = 10\nprofile small when", "F119",
     "checkpoint every", ""),
    ("profile small when", 'eval e { dataset = sums, split = "test", every = 5, score = correct }\n'
     "profile small when", "P212", '"test"', "give the eval a `source` of its own"),
    (PROMPT, "prompt = int(row.question)", "F101", "int",
     "here it is no function: keep the text, and let a reward parse the number in it"),
    ("r.num_tokens / 16", "r.completion / 16", "F101", "completion",
     "here it is the text `response`"),
    ("max_tokens = 16 }", "max_tokens = 16, n = 8 }", "F103", "n",
     "here it is `n` of `generator.sample(prompt, n = 8)`"),
    (" ref: [B, T] f32", " ref: [B, T] f32, entropi: diff [B, T] f32", "L406", "diff [B, T] f32",
     "did you mean `entropy`?"),
    ("advantage norm(r: [G] f32) -> [G] f32 = (r - mean(r, G)) / (std(r, G) + 1e-6)",
     "advantage norm = 3", "F109", "3", ""),
    ("token_mean(ratio > 1.28, mask)", "token_mean(entropy, mask)", "F101", "entropy",
     "declare it as a field of the loss: `entropy: diff [B, T] f32`"),
    (PROMPT, "prompt = question", "F101", "question", "to read a column, write `row.question`"),
    ("score = correct + 0.1 * length", "score = accuracy", "F101", "accuracy",
     "known names here are `correct`, `length`"),
    ("score = correct + 0.1 * length", "score = correct(rollout)", "F119", "correct",
     "name the reward without arguments: `correct`"),
    ("score = correct + 0.1 * length", "score = rl.math_equal", "F119", "rl.math_equal",
     "declare it with `reward correct = rl.math_equal`, and write `correct` here"),
    ("grade(rollout", "rl.math_equal(rollout", "F119", "rl.math_equal",
     "declare it with `reward correct = rl.math_equal`, and write `correct` here"),
    ("ref: [B, T] f32, adv", "reference: [B, T] f32, adv", "F101", "ref",
     "known names here are `logprob`, `behavior`, `reference`, `adv`, `mask`, `ratio`, `gain`"),
    ("gain  = min(", "gain = torch.min(", "F101", "torch.min", "here it is `min(a, b)`"),
    ("-gain + 0.01", "-gain.clamp(0, 1) + 0.01", "F101", "gain.clamp",
     "here it is `clamp(gain, lo, hi)`"),
    ("gain  = min(ratio", "gain = min(ratio.detach()", "F101", "ratio.detach",
     "here it is `stop(ratio)`"),
    ("gain  = min(ratio", "gain = min(torch.exp(ratio)", "F101", "torch.exp",
     "here it is `exp(x)`"),
    ("gain  = min(ratio * adv", "gain = min(ratio.T * adv", "F101", "T",
     "axes have names, so values of different axes are broadcast by themselves: write `ratio`"),
    ("gain  = min(ratio * adv", "gain = min(ratio.shape * adv", "F101", "shape",
     "the axes of a value are in its type, as in `[B, T] f32`; sizes are not known here"),
    ("gain  = min(ratio * adv", "gain = min(ratio * adv.unsqueeze(-1)", "F101", "adv.unsqueeze",
     "axes have names, so values of different axes are broadcast by themselves: write `adv`"),
    ("gain  = min(ratio", "gain = min(ratio.float()", "F101", "ratio.float",
     "numbers are f32: write `ratio`; if it is a condition, `1.0 if ratio else 0.0`"),
    ("gain  = min(ratio", "gain = min(ratio.to(torch.float32)", "F101", "ratio.to",
     "there are no devices, copies and dtypes in a body: write `ratio`"),
    ("token_mean(ratio > 1.28, mask)", "ratio.mean()", "F101", "ratio.mean",
     "a reduction names its axis; over each sequence it is `mean(ratio, T, mask)`, over the whole "
     "step `token_mean(ratio, mask)`"),
    ("mean(r, G)", "r.mean()", "F101", "r.mean",
     "a reduction names its axis; over the completions of a group it is `mean(r, G)`"),
    ("gain  = min(ratio", "gain = min(ratio[mask]", "F119", "ratio[mask]",
     "aggregators take the mask, `token_mean(x, mask)`; a value per token is "
     "`x if mask else 0.0`"),
    ("  gain  = min(", "  with torch.no_grad():\n  gain = min(", "S027", "with",
     "to stop a gradient, write `stop(x)` around the value"),
    ("gain  = min(ratio", "gain = min((ratio - 1).detach()", "S023", ".",
     "numbers have functions, not methods: `stop(x)`"),
    ("gain  = min(ratio", "gain = min((ratio - 1).unsqueeze(-1)", "S023", ".",
     "axes have names, so values of different axes are broadcast by themselves: write `x`"),
    ('jsonl("forgedsl:data/arithmetic.jsonl")', "jsonl(minus.jsonl)", "F101", "minus.jsonl",
     'write `"minus.jsonl"`'),
    ('local("forgedsl:models/tiny_math")', "local(models/tiny-math)", "F101", "models/tiny-math",
     'write `"models/tiny-math"`'),
    ("clip(ratio, 0.8, 1.28) * adv)", "where(ratio, 0.8, 1.28) * adv)", "F101", "where",
     "here it is `a if condition else b`"),
    ("trainer.step(batch,", "trainer.step(concat(batch, batch),", "F101", "concat",
     "here it is `trainer.step(merge(a, b), loss = ...)` for batches, and `source = "
     "mixture([...], weights = [...])` of the dataset for rows"),
    ("kept    = rollout.keep(mixed(score))", "kept = rollout.keep", "F119", "rollout.keep",
     "call it: `kept = rollout.keep(...)`"),
    ("prompt  = sums.draw(16)", "prompt = sums.draw", "F119", "sums.draw",
     "call it: `prompt = sums.draw(32)`"),
    ("score   = grade(rollout, prompt.target)", "score = grade", "F119", "grade",
     "call it: `score = grade(rollout, prompt.target)`"),
    ("adv = norm(score)", "adv = rl.group_norm", "F109", "rl.group_norm",
     "call it: `rl.group_norm(score)`"),
    (PROMPT, 'prompt = [{"role": "user", "content": row.question}]', "S021", "{",
     "for messages, write `chat(user = row.question)`, `chat(system, user)` or `row.messages`"),
    (PROMPT, 'prompt = "Q: {}".format(row.question)', "S001", ".",
     'to join texts, use `+`: `"Q: " + row.question`; convert numbers with `text(row.id)`'),
    ("sync trainer", "}\ntrainer.optimizer { lr = 1e-4 }\nflow b {\n  sync trainer", "S001", "{",
     "`trainer.optimizer.NAME = VALUE`, or a block in a block: `trainer { optimizer { ... } }`"),
    (PROMPT, "prompt = row", "T702", "row", "name a column of the row: `prompt = row.question`"),
    (PROMPT, "prompt = len(row.question)", "T702", "len(row.question)", "`prompt = row.question`"),
    (PROMPT, "prompt = [chat(user = row.question)]", "T702", "[chat(user = row.question)]",
     "`chat(...)` is already a list of messages"),
    ('jsonl("forgedsl:data/arithmetic.jsonl")', 'mixture([jsonl("a.jsonl")])', "F114",
     'mixture([jsonl("a.jsonl")])', "`mixture([a, b], weights = [0.5, 0.5])`"),
    ('jsonl("forgedsl:data/arithmetic.jsonl")', '[jsonl("a.jsonl")]', "F109", '[jsonl("a.jsonl")]',
     "`mixture([a, b], weights = [0.5, 0.5])`"),
    ("loss = pg", "loss = ppo", "F101", "ppo", "did you mean `rl.ppo`?"),
    ("loss = pg", 'loss = "ppo"', "F109", '"ppo"', "did you mean `rl.ppo`?"),
    ("loss = pg", "loss = rl", "F109", "rl", "name a loss of it: `rl.sft`"),
    ("param group : int = 8", "group = 8", "F119", "group",
     "to declare a parameter, write `param NAME : TYPE = VALUE`"),
    ("vllm(policy)", "sglang(policy)", "F101", "sglang", "known are `openai`, `titan`, `vllm`"),
    ("when cluster.gpus", "when gpus", "F101", "gpus", "did you mean `cluster.gpus`?"),
    ("sync trainer -> generator", "sync trainer -> generator { overlap = True }", "F101", "True",
     "did you mean `true`?"),
    ("  prompt  = sums.draw(16)", "  prompt  = sums.draw(16", "S008", "(", ""),
    # of types and values
    ("r.num_tokens / 16", "r.response", "T702", "r.response", ""),
    ("score = correct +", "score = correct if correct else 0.1 +", "T702", "correct", ""),
    ('jsonl("forgedsl:data/arithmetic.jsonl")', '"my.jsonl"', "F109", '"my.jsonl"',
     'write `jsonl("my.jsonl")`'),
    ('jsonl("forgedsl:data/arithmetic.jsonl")', 'hf("./my.jsonl")', "F113", 'hf("./my.jsonl")',
     'write `jsonl("./my.jsonl")`'),
    ('local("forgedsl:models/tiny_math")', 'hf("./models/mine")', "F113", 'hf("./models/mine")',
     'write `local("./models/mine")`'),
    ('local("forgedsl:models/tiny_math")', 'hf("https://huggingface.co/Qwen/Qwen3-4B")', "F113",
     'hf("https://huggingface.co/Qwen/Qwen3-4B")', 'write `hf("Qwen/Qwen3-4B")`'),
    ('local("forgedsl:models/tiny_math")', '"Qwen/Qwen3-1.7B"', "F109", '"Qwen/Qwen3-1.7B"',
     'write `hf("Qwen/Qwen3-1.7B")`'),
    (PROMPT, PROMPT + ', split = "train"', "F103", "split",
     'here it is `source = hf(id, split = "train")` of the dataset'),
    ("dtype = f32", "dtype = float32", "F113", "float32", "here it is `f32`"),
    ("dtype = f32", 'dtype = "bfloat16"', "F109", '"bfloat16"', "here it is `bf16`"),
    ("device    = cpu", 'device = "cuda:0"', "F109", '"cuda:0"', "here it is `gpu`"),
    ("starve_timeout = 5min", 'starve_timeout = "5min"', "F109", '"5min"',
     "without quotes: `5min`"),
    ("dtype = f32", 'dtype = "f32"', "F109", '"f32"', "without quotes: `f32`"),
    ("lr = 2e-4", 'lr = "2e-4"', "F109", '"2e-4"', "without quotes: `2e-4`"),
    ("schedule.steps = 5", "trainer { device = gpu, gpus = 4 }", "P202", "4",
     "`procs = 4` uses 4 GPUs, one per process"),
    ("warmup = 5", "warmup = 0.1", "F109", "0.1", "it is a count, not a fraction"),
    ("on_truncated = -0.5", "on_truncated = drop", "F101", "drop",
     "`on_truncated` is a number or `none`"),
    ("step(batch, loss = pg)", "step(batch, pg)", "F114", "pg",
     "`trainer.step(batch, loss = NAME)`"),
    ("mean(r, G)", "mean(r, T)", "T701", "r", "its axis is G, the completions of a prompt"),
    ("r - mean(r, G)", "r - mean(r)", "F114", "mean(r)",
     "to reduce over the completions of a group, write `mean(x, G)`"),
    ("std(r, G) + ", "std(r, B) + ", "T704", "B",
     "declare its parameters over [B], to get the whole step"),
    ("mixed(score: [G] f32) -> bool = std(score, G)",
     "mixed(score: [B] f32) -> bool = std(score, B)", "T704", "[B] f32",
     "[G] has one entry for each completion of a prompt"),
    ("import \"std/rl\" as rl", "import \"std/r1\" as rl", "F115", '"std/r1"',
     "did you mean `std/rl`?"),
    ("0.1 * length", "0.1 * length.mean", "F101", "mean", ""),
    ("r.num_tokens / 16", "r.num_tokens / generator.sampling.max_tokens", "F101", "generator",
     "a body cannot read settings, only params: `param max_tokens : int = ...`"),
    ("clip(ratio, 0.8, 1.28)", "clip(ratio, 1.28, 0.8)", "F113", "clip(ratio, 1.28, 0.8)",
     "the lower bound comes first: `clip(x, lo, hi)`"),
    ("lr = 2e-4", "lr = 2e-4x", "S007", "2e-4x", "units are ms s min h d KiB MiB GiB TiB k M"),
    ("schedule async { steps = 50,", "schedule async {", "F110",
     "schedule async { max_policy_age = 1, starve_timeout = 5min }",
     "set `steps = 500` or `epochs = 1` in `schedule`"),
    ("loss = pg", 'loss = rl.dapo(clip_low = "0.1")', "F109", '"0.1"', "without quotes: `0.1`"),
    ("grade(rollout, prompt.target)", "0.5 * grade(rollout, prompt.target)", "F119",
     "0.5 * grade(rollout, prompt.target)",
     "compute in a rubric: `rubric grade { score = 0.5 * correct }`"),
    ('jsonl("forgedsl:data/arithmetic.jsonl")', 'mixture(jsonl("a"), jsonl("b"))', "F114",
     'mixture(jsonl("a"), jsonl("b"))', "`mixture([a, b], weights = [0.5, 0.5])`"),
    ("steps = 50", "steps = 50steps", "S007", "50steps", 
     "a count has no unit: write `50`; units are ms s min h d KiB MiB GiB TiB k M"),
    ("lr = 2e-4", "lr = 2e-4s", "S007", "2e-4s",
     "units are ms s min h d KiB MiB GiB TiB k M after plain digits"),
    ("adv: [B] f32", "adv: Tensor", "F101", "Tensor", ""),
    ("max_tokens = 16 }", 'max_tokens = 16, stop = "\\n" }', "F109", '"\\n"',
     'write a list: `["\\n"]`'),
    ("rl.math_equal()", 'rl.format_regex("(a")', "F113", 'rl.format_regex("(a")', ""),
    ("report high", "report high = token_mean(ratio, mask)\n  report high", "F102",
     "high", "rename it"),
    (
        "schedule.steps = 5 }",
        'schedule.steps = 5 }\neval e { dataset = sums, split = "test", every = 5, '
        'score = correct, source = jsonl("forgedsl:data/arithmetic_test.jsonl") }',
        "P212",
        '"test"',
        "remove one of them",
    ),
    ("rows = 64", "rows = 64, tokens = 4096", "F113", "4096", "remove one of them"),
    ("norm(r: [G] f32) -> [G] f32", "norm(r: [G] f32) -> [B] f32", "T701", "[B] f32",
     "declare `-> [G] f32`"),
    ("[G] f32) -> bool", "[G] f32) -> [G] bool", "T701", "[G] bool", "declare `-> bool`"),
    ("  ratio = exp", "  ratio : [B] f32 = exp", "T701", "[B] f32", ""),
    ("norm(r: [G] f32) -> [G] f32", "norm(r)", "S025", "r",
     "write a parameter of an advantage as `r: [G] f32`"),
    # of losses and the flow
    ("generator.sample(prompt", "generator.sample(sums", "F109", "sums",
     "to draw from it, write `prompt = sums.draw(16)`"),
    ("adv = norm(score)", "adv = norm(score) * 2", "F119", "norm(score) * 2",
     "compute it in a rubric, an advantage or a filter, and call that here"),
    ("keep(mixed(score))", "keep(std(score) > 0)", "F119", "std(score) > 0",
     "compute it in a rubric, an advantage or a filter, and call that here"),
    ("grade(rollout, prompt.target)", "grade(prompt, rollout)", "T703", "prompt", ""),
    ("batch   = replay", "batch   = collate", "F101", "collate",
     "here it is `replay(rollout, ...)`"),
    ("loss = pg)", "loss = pg, epoch = 2)", "F114", "epoch", "did you mean `epochs`?"),
    ("loss = pg)", "loss = pg, epochs = batch)", "F109", "batch", ""),
    ("  trainer.step", "  x = trainer.step", "F119", "trainer.step(batch, loss = pg)",
     "write `trainer.step(...)` without a name; for metrics, use `report` in the loss"),
    ("-> generator", "-> generator { interval = 2 }", "F103", "interval",
     "known are `every`, `on_swap`, `overlap`, `timeout`, `transport`, `weights`"),
    ("trainer.step(", "generator.step(", "F101", "step", "known are `play`, `sample`"),
    (MINIMIZE, "minimize mean(-gain)", "F114", "mean(-gain)",
     "write `mean(x, T, mask)` to reduce each sequence, `token_mean(x, mask)` to reduce over the "
     "whole step"),
    (MINIMIZE, "minimize sum(-gain * mask) / sum(mask)", "F114", "sum(-gain * mask) / sum(mask)",
     "for a mean over the tokens of the step, write `token_mean(x, mask)`"),
    (MINIMIZE, "minimize seq_mean(token_mean(-gain, mask))", "T701", "token_mean(-gain, mask)",
     "remove one aggregator: the other already divides by the counts of the whole step"),
    (MINIMIZE, "return token_mean(-gain, mask)", "F119", "return token_mean(-gain, mask)",
     "a loss must end with `minimize`"),
    (", ref = reference.logprobs(kept)", "", "F111", "batch   = replay(kept, adv = norm(score))",
     "add it: `replay(..., ref = reference.logprobs(rollout))` of a frozen "
     "`service reference : titan(MODEL) {}`"),
    ("adv = norm(score)", "advantages = norm(score)", "F111", "norm(score)",
     "use the loss's name for it: `replay(..., adv = ...)`"),
    ("sync trainer -> generator", "sync generator -> trainer", "F108",
     "sync generator -> trainer", "sync from `trainer`"),
    # of values
    ("on_truncated = -0.5", "on_truncated = True", "F109", "True", ""),
    ("warmup = 5", "warmup = None", "F109", "None", ""),
    ("dtype = f32, c", "dtype = f32 // single\n  c", "S001", "//", "write a quotient as `a / b`"),
]  # fmt: skip


def findings(text: str) -> list[tuple[str, str, str]]:
    linted = lint_source(SourceFile("t.forge", text), Path())
    return [(d.code, text[d.span.start : d.span.end], d.help) for d in linted.diagnostics]


def test_the_text_itself_is_right() -> None:
    assert findings(TEXT) == []


@pytest.mark.parametrize(("old", "new", "code", "where", "help"), MISTAKES)
def test_one_mistake_one_message(old: str, new: str, code: str, where: str, help: str) -> None:
    assert old in TEXT
    assert findings(TEXT.replace(old, new)) == [(code, where, help)]


def test_the_library_is_missed_once() -> None:
    text = TEXT.replace('import "std/rl" as rl\n', "").replace("loss = pg", "loss = rl.dapo")
    text = text.replace("rl.k3_unbiased(logprob, ref, ratio)", "ref")
    assert findings(text) == [
        ("F101", "rl.math_equal", 'add `import "std/rl" as rl` at the start of the file')
    ]


def test_a_stream_that_nothing_reads_is_shown_where_it_is_made() -> None:
    text = TEXT.replace("  trainer.step", "  again = reference.logprobs(rollout)\n  trainer.step")
    (found,) = findings(text)
    assert found[:2] == ("F106", "again = reference.logprobs(rollout)")


def test_a_coefficient_that_changes_over_the_run_reads_num_steps() -> None:
    text = TEXT.replace("mask: [B, T] bool,\n)", "mask: [B, T] bool,\n  num_steps: [B] i64,\n)")
    text = text.replace("-gain + 0.01", "-gain + max(0.0, 0.01 - num_steps / 1e5)")
    assert text.count("num_steps") == 2
    assert findings(text) == []
    (unknown,) = findings(TEXT.replace("-gain + 0.01", "-gain + 0.01 / step"))
    assert unknown == ("F101", "step", "here it is `num_steps: [B] i64`, a field of the loss")


def test_a_function_has_the_type_it_declares() -> None:
    text = TEXT.replace("loss pg(", "fn half(x: [B, T] f32) -> [B, T] f32 = 0.5 * x\nloss pg(")
    text = text.replace("-gain + 0.01", "-half(gain) - half(ref) + 0.01")
    assert findings(text) == []
    wrong = text.replace("x: [B, T] f32) -> [B, T] f32", "x: [B, T] f32) -> [B] f32")
    assert findings(wrong) == [("T701", "[B] f32", "")]


def test_groups_of_one_matter_to_who_reads_them() -> None:
    text = TEXT.replace("flow train {", "service other : vllm(policy) {"
                        " device = cpu, sampling.max_tokens = 8 }\nflow train {")  # fmt: skip
    text = text.replace("  kept ", "  single = other.sample(prompt, n = 1)\n  kept ")
    text = text.replace("-> generator", "-> generator\n  sync trainer -> other")
    assert [code for code, _, _ in findings(text)] == ["F106"]
    small = TEXT.replace("param group : int = 8", "param group : int = 1")
    assert [code for code, _, _ in findings(small)] == ["R509"]


def test_supervised_batches_need_a_chat() -> None:
    flow = TEXT[TEXT.index("flow train") : TEXT.index("schedule")]
    text = TEXT.replace(
        flow, "flow train {\n  b = sums.batches()\n  trainer.step(b, loss = rl.sft)\n}\n"
    )
    text = text.replace(
        "schedule async { steps = 10, max_policy_age = 1 }", "schedule sync { steps = 9 }"
    )
    assert ("F110", "sums", "`chat = ...`: conversation for supervised training") in findings(text)


def test_a_number_of_a_parameter_is_shown_where_it_is_set():
    text = TEXT.replace("group : int = 8", "group : int = 0")
    found = lint_source(SourceFile("x.forge", text), Path()).diagnostics
    (one,) = [d for d in found if d.code == "F113"]
    (label,) = one.related
    assert label.text == "`group` is 0 here"
    assert text[label.span.start : label.span.end] == "0"


def test_a_context_that_is_too_small_is_reported_once():
    text = TEXT.replace("context = 256", "context = 16")
    found = lint_source(SourceFile("x.forge", text), Path()).diagnostics
    (one,) = [d for d in found if d.code == "D605"]
    assert one.help == "`context = 64` leaves room for prompts"


def test_a_parameter_with_the_plural_of_a_stream_is_named_as_parameter():
    text = TEXT.replace("group : int = 8", "prompts : int = 8").replace("n = group", "n = prompts")
    text = text.replace("sample(prompt,", "sample(prompts,")
    (found,) = lint_source(SourceFile("t.forge", text), Path()).diagnostics
    assert found.message == "`prompts` is a parameter (int), not a stream"
    assert found.help == "did you mean `prompt`?"
