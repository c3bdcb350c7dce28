"""A pipeline of about forty nodes over six services, for the tests of drawings."""

from forge_texts import GRPO, changed

FUNCTIONS = """
advantage centred(r: [G] f32) -> [G] f32 = r - mean(r, G)
advantage blend(a: [G] f32, b: [G] f32) -> [G] f32 = 0.5 * a + 0.5 * b
filter some(score: [G] f32) -> bool = max(score, G) > 0.0
"""
SERVICES = """
service second : vllm(policy) { sampling.max_tokens = 1024, mesh_name = "a_second_generator" }
service judge  : titan(policy) { device = cpu, procs = 1 }
service elder  : titan(policy) { device = cpu, procs = 1 }
"""


def big_flow(num_scores: int = 12) -> str:
    """The text of the pipeline."""
    lines = ["  prompt = gsm8k.draw(8)", "  rollout = generator.sample(prompt, n = 4)"]
    lines += ["  ref_lp = reference.logprobs(rollout)", "  judged = judge.logprobs(rollout)"]
    lines += ["  elder_lp = elder.logprobs(rollout)"]
    kept = "rollout"
    for i in range(num_scores):
        target = ", prompt.target" if i % 2 else ", prompt.text"
        lines.append(f"  score_number_{i} = total(rollout{target})")
    for i in range(3):
        lines.append(f"  kept{i} = {kept}.keep(some(score_number_{i}))")
        kept = f"kept{i}"
    lines.append("  adv0 = centred(score_number_0)")
    for i in range(1, num_scores):
        lines.append(f"  adv{i} = blend(adv{i - 1}, centred(score_number_{i}))")
    fields = f"ref = ref_lp, old = judged, oldest = elder_lp, adv = adv{num_scores - 1}"
    lines.append(f"  batch = replay({kept}, {fields})")
    lines.append("  trainer.step(batch, loss = grpo)")
    lines.append("  sync trainer -> generator { every = 1 }")
    lines.append("  sync trainer -> second { every = 1 }")
    head, _ = GRPO.split("flow train {")
    head = changed(
        head,
        ("ref: [B, T] f32,", "ref: [B, T] f32, old: [B, T] f32, oldest: [B, T] f32,"),
        ("rl.k3(logprob, ref)", "rl.k3(logprob, ref + old + oldest)"),
        ("replicas = 2, parallel.tp = 2, ", ""),
    )
    schedule = "schedule async { steps = 9, max_policy_age = 4, starve_timeout = 10min }\n"
    return f"{head}{FUNCTIONS}{SERVICES}flow train {{\n" + "\n".join(lines) + f"\n}}\n{schedule}"
