"""GRPO as a loop of one's own, on the services of a .forge file.

    python grpo_by_hand.py sums.forge 200          # with sums.forge of the README

The file's flow does the same. Here each prompt is sampled under the newest weights: nothing runs
ahead, so a step takes longer than in a run, and no sample is off-policy.
"""

import sys

import forgedsl
from forgedsl.python.session import Session

PROMPTS, SIBLINGS = 32, 8


def train(pipeline: forgedsl.Pipeline, folder: str | None, steps: int) -> list[float]:
    """Train for some steps; return the mean reward of each."""
    advantage = pipeline.function("group_norm")
    with pipeline.session(folder) as s:
        rewards = [step(s, advantage, number) for number in range(1, steps + 1)]
        s.save("last", steps=steps)
        s["trainer"].export(s.folder / "export").result()
    return rewards


def step(s: Session, advantage, number: int) -> float:
    """Sample, score, update, and send the weights back."""
    trainer, policy, grade = s["trainer"], s["generator"], s["grade"]
    groups = policy.sample(s["sums"].draw(PROMPTS), n=SIBLINGS).result()
    waiting = [(group, grade.score(group)) for group in groups]  # all at once
    for group, score in waiting:
        group.scores = score.result()
        group.adv = advantage(group.scores)
    batch = s.batch(groups, adv="adv")
    passed = trainer.forward_backward(batch, "clipped")
    done = trainer.optim_step()  # begun before the pass has ended
    s.sync(trainer, policy).result()
    reward = sum(batch.rewards) / len(batch.rewards)
    loss, result = passed.result().loss, done.result()
    s.log(step=number, reward_mean=reward, loss=loss, grad_norm=result.grad_norm, lr=result.lr)
    print(f"step {number}: reward {reward:.3f}, loss {loss:.4f}", file=sys.stderr)
    return reward


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdecimal():
        sys.exit("usage: python grpo_by_hand.py FILE.forge STEPS")
    file, steps = sys.argv[1], int(sys.argv[2])
    train(forgedsl.load(file, set=[f"schedule.steps={steps}"]), None, steps)
