"""What an edit of a pipeline does, simulated: an oracle that knows no rule.

    text --compiled--> columns, rewards, rubric, filter, advantage (Python), loss (torch)
         --a small softmax policy samples, is scored, learns by the gradient of the loss--> Outcome

Six prompts with a number for an answer; an answer is up to four words: a right or a wrong number in
tags, a thought, filler, the end. Steps have one length, since the optimizer divides by the scale of
a gradient. `damage` compares an edited pipeline with the one that it was made of.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import torch

from forgedsl.api import load_text
from forgedsl.diagnostics import Reporter
from forgedsl.ir.program import Constructor, PythonFunction
from forgedsl.losses.tree import ROW_STATISTICS
from forgedsl.lower.build import _program_text
from forgedsl.lower.loss import lower_loss
from forgedsl.types.flow import Role
from forgedsl_runtime.losses.function import LossFunction
from forgedsl_runtime.rewards.loading import STANDARD

from .corpus import PIPELINES

PROMPTS, WORDS, LENGTH, GROUPS, STEPS, STRIDE = 6, 6, 4, 24, 24, 0.8
END, RIGHT, WRONG, OTHER, THOUGHT, FILLER = range(WORDS)
ROWS = [
    SimpleNamespace(
        question=f"How much is it, number {i}?", answer=f"It is so. #### {i + 11}",
        instruction=f"Number {i}?", messages="", test_cases=str(i + 11),
        chosen_response=(RIGHT, END), rejected_response=(WRONG, END),
        chosen=(RIGHT, END), rejected=(WRONG, END), prompt="",
    )
    for i in range(PROMPTS)
]  # fmt: skip


class NoProgram(Exception):
    """The compiler refuses the text."""


@dataclass
class Outcome:
    """What training does: `rise` of the objective, and what the loss of one token looks like."""

    rise: float = 0.0
    is_finite: bool = True
    on_prompt: bool = False
    leaks: bool = False
    off_measure: float = 0.0
    right_pays: bool = True
    answer_over_form: bool = True
    bare_over_form: bool = True
    effects: dict[str, float] = field(default_factory=dict)
    """of each reward on the score, by what it has for different answers"""
    largest: float = 0.0
    """advantage in a group of scores that hardly differ"""
    pulls: dict[str, float | None] = field(default_factory=dict)
    """cosine of the step and of what brings back to the reference, or raises the entropy"""
    slopes: dict[tuple[float, float], float] = field(default_factory=dict)
    """of the loss of one token by (advantage, ratio)"""


class Bandit:
    """A pipeline, compiled for the small policy."""

    def __init__(self, text):
        loaded = load_text(text, str(PIPELINES / "t.forge"), folder=PIPELINES, profile="none")
        if loaded.program is None or loaded.reporter.has_errors:
            raise NoProgram
        self.program, reporter = loaded.program, Reporter()
        source = _program_text(self.program, reporter, loaded.sources)
        steps = {step.op: step for step in self.program.flow}
        self.steps, self.update = steps, steps["step"]
        name = self.update.settings["loss"].value.name
        lowered = lower_loss(self.program.functions[name], reporter, loaded.sources)
        if lowered is None or reporter.has_errors:
            raise NoProgram
        self.loss = LossFunction(lowered, "torch")
        self.python = {}
        exec(compile(source, "program", "exec"), self.python)  # what the compiler wrote
        sampler = self.program.services.get(getattr(steps.get("sample"), "receiver", ""))
        found = sampler.settings if sampler is not None else {}
        self.sampling = {
            key.partition(".")[2]: value.value for key, value in found.items() if "sampling" in key
        }
        trainer = self.program.services[self.update.receiver]
        self.temperature = float(trainer.settings["temperature"].value)
        self.size = min(8, steps["sample"].settings["n"].value) if "sample" in steps else 1
        self.scores = {}

    # ---- the policy

    def draw(self, table, seed):
        """Answers to every prompt, and their log-probs as the sampler sees them."""
        rng = torch.Generator().manual_seed(seed)
        logits = table / max(self.sampling["temperature"], 1e-3)
        logp = torch.log_softmax(_truncated(logits, self.sampling), dim=-1)
        answers = []
        for group in range(GROUPS):
            prompt = group % PROMPTS
            for _ in range(self.size):
                words = torch.multinomial(logp[prompt, 1:].exp(), 1, generator=rng)[:, 0].tolist()
                words = words[: words.index(END) + 1] if END in words else words
                at = [logp[prompt, 1 + i, word].item() for i, word in enumerate(words)]
                answers.append((prompt, tuple(words), at))
        return answers

    def batch(self, answers):
        """Rows of packed sequences: a token of the prompt, then the answer."""
        rows = [(i, p, t, w) for i, (p, words, _) in enumerate(answers)
                for t, w in enumerate((FILLER, *words))]  # fmt: skip
        seq, prompt, place, word = (torch.tensor(column) for column in zip(*rows, strict=True))
        behavior = torch.tensor([x for _, _, at in answers for x in (0.0, *at)])
        return SimpleNamespace(
            seq=seq, at=(prompt, place), word=word, mask=place > 0, behavior=behavior,
            lengths=torch.tensor([len(words) for _, words, _ in answers]),
        )  # fmt: skip

    def value(self, table, batch, **inputs):
        """The declared loss; inputs by role where the loss reads them."""
        given = {}
        for each in self.loss.fields:
            if each.name not in (*ROW_STATISTICS, "mask"):
                given[each.name] = inputs[self._role(each.name)]
        return self.loss(
            logits=table[batch.at], labels=batch.word, mask=batch.mask, seq_id=batch.seq,
            temperature=self.temperature, **given,
        ).loss  # fmt: skip

    def _role(self, name):
        edges = {i.argument: i.edge for i in self.steps["replay"].inputs}
        steps = {step.name: step for step in self.program.flow}
        made = steps.get(edges.get(name))
        if made is not None and made.op == "logprobs":
            return "proximal" if made.receiver == self.update.receiver else "ref"
        return name if name in ("behavior", "num_tokens", "truncated", "num_steps") else "adv"

    def logprob(self, table, batch, temperature=None):
        logp = torch.log_softmax(table / (temperature or self.temperature), dim=-1)
        return logp[batch.at].gather(1, batch.word[:, None])[:, 0].detach()

    def reference(self, table, batch):
        """Log-probs of the service that rates, at its temperature."""
        rates = self.steps.get("logprobs", self.update).receiver
        settings = self.program.services[rates].settings
        return self.logprob(table, batch, float(settings["temperature"].value))

    # ---- scores

    def advantages(self, answers, batch):
        """The advantage of each answer, and which of them the filter keeps."""
        scores = torch.tensor([self._score(prompt, words) for prompt, words, _ in answers])
        kept = torch.ones(len(answers), dtype=torch.bool)
        lengths = batch.lengths.float() * self._unit
        if "keep" in self.steps:
            calls = [s for s in self.program.flow if Role.COMPUTES in s.roles]
            keeps = next(s for s in calls if self.program.functions[s.receiver].kind == "filter")
            keep = self._function("filter", keeps.receiver)
            for at in range(0, len(answers), self.size):
                kept[at : at + self.size] = bool(keep(scores[at : at + self.size]))
        call = next((s for s in self.program.flow if Role.COMPUTES in s.roles
                     and self.program.functions[s.receiver].kind == "advantage"), None)  # fmt: skip
        if call is None:
            return scores, kept
        function = self._function("advantage", call.receiver)
        of_step = any("B" in str(f.type.axes) for f in self.program.functions[call.receiver].fields)
        columns = [scores if self._is_score(i.edge) else lengths for i in call.inputs]
        if of_step:
            group = torch.arange(len(answers)) // self.size
            found = function(*columns, *([group] if "group" in _names(function) else []))
            return found.expand(len(answers)), kept
        parts = [
            function(*(c[at : at + self.size] for c in columns)) * torch.ones(self.size)
            for at in range(0, len(answers), self.size)
        ]
        return torch.cat(parts), kept

    def _is_score(self, edge):
        return any(s.name == edge and s.op == "score" for s in self.program.flow)

    def _function(self, kind, name):
        return self.python[f"{kind}_{name.replace('.', '_')}"]

    @property
    def _unit(self):
        return self.sampling["max_tokens"] / LENGTH

    def _score(self, prompt, words):
        key = prompt, words
        if key not in self.scores:
            self.scores[key] = float(self._scored(prompt, words))
        return self.scores[key]

    def rollout(self, prompt, words):
        """An answer, as rewards are given it."""
        row, drawn = ROWS[prompt], self.steps["draw"].receiver
        target = self.python[f"dataset_{drawn}_target"](row)
        said = {
            END: "", RIGHT: f"<answer>{prompt + 11}</answer>", WRONG: "<answer>5</answer>",
            OTHER: "<answer>7</answer>", THOUGHT: "<think>so</think>", FILLER: "well ",
        }  # fmt: skip
        return self._answered(prompt, "".join(said[word] for word in words), words, target)

    def bare(self, prompt):
        """The right number alone, in no form."""
        target = self.python[f"dataset_{self.steps['draw'].receiver}_target"](ROWS[prompt])
        return self._answered(prompt, str(prompt + 11), (RIGHT, END), target)

    def _answered(self, prompt, text, words, target):
        return SimpleNamespace(
            prompt="", response=text, target=target, num_tokens=round(len(words) * self._unit),
            truncated=END not in words, turns=1, ended="done", rewards={},
        )  # fmt: skip

    def _scored(self, prompt, words):
        return self.graded(self.rollout(prompt, words))

    def graded(self, rollout):
        name = self.steps["score"].receiver
        rubric = self.program.rubrics.get(name)
        if rubric is None:
            return self._reward(name, rollout)
        cut = rubric.settings["on_truncated"].value
        if rollout.truncated and cut is not None:
            return cut
        values = {n: self._reward(n, rollout) for n in self.program.rewards}
        return self._function("rubric", name)(values)

    def _reward(self, name, rollout):
        body = self.program.rewards[name].body
        if isinstance(body, Constructor):
            return partial(STANDARD[body.name], **body.args)(rollout, rollout.target)
        if isinstance(body, PythonFunction):  # tests in a sandbox: of the right number
            return float(f"<answer>{rollout.target}</answer>" in rollout.response)
        return self._function("reward", name)(rollout)


def _names(function):
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def _truncated(logits, sampling):
    """Logits without what top_k, top_p and min_p leave out."""
    order = logits.sort(dim=-1, descending=True)
    probs = order.values.softmax(-1)
    rank = torch.arange(WORDS).expand_as(probs)
    out = (probs.cumsum(-1) - probs) >= (sampling["top_p"] or 1.0)
    out |= rank >= (sampling["top_k"] or WORDS)
    out |= probs < (sampling["min_p"] or 0.0) * probs[..., :1]
    out[..., 0] = False
    return logits.masked_fill(torch.zeros_like(out).scatter(-1, order.indices, out), -math.inf)


def start(seed=0):
    rng = torch.Generator().manual_seed(seed)
    return 0.5 * torch.randn(PROMPTS, LENGTH + 1, WORDS, generator=rng)


# ---- what is wanted


def right(table, cut=False):
    """How often the last number of an answer is right; of one that is `cut` too."""
    p = table[:, 1:].softmax(-1)
    state = torch.stack([torch.ones(PROMPTS), torch.zeros(PROMPTS), torch.zeros(PROMPTS)], 1)
    done = torch.zeros(PROMPTS)
    for at in range(LENGTH):
        done = done + state[:, 1] * p[:, at, END]
        stays = p[:, at, THOUGHT] + p[:, at, FILLER]
        alive = state.sum(1)
        state = torch.stack(
            [
                state[:, 0] * stays,
                state[:, 1] * stays + alive * p[:, at, RIGHT],
                state[:, 2] * stays + alive * (p[:, at, WRONG] + p[:, at, OTHER]),
            ],
            1,
        )
    return (done + state[:, 1] * cut).mean()


def divergence(table, other):
    """KL of the policy to another, over the places of an answer that are reached."""
    p, reached = table[:, 1:].log_softmax(-1), torch.ones(PROMPTS)
    q, total = other[:, 1:].log_softmax(-1), 0.0
    for at in range(LENGTH):
        total = total + reached * (p[:, at].exp() * (p[:, at] - q[:, at])).sum(-1)
        reached = reached * (1 - p[:, at, END].exp())
    return total.mean()


def entropy(table):
    return -divergence(table, torch.zeros_like(table))


def cosine(one, other):
    size = one.norm() * other.norm()
    return float((one * other).sum() / size) if size > 1e-12 else None


# ---- what training does


def outcome(text):
    """Train, and look at the loss of single tokens."""
    try:
        return _trained(Bandit(text), Outcome())
    except ArithmeticError:  # a score that divides by 0
        return Outcome(is_finite=False)


def _trained(bandit, found):
    supervised = "sample" not in bandit.steps
    rated = bandit.program.rubrics  # without one, an answer that is cut may be right
    wanted = _demonstrated if supervised else partial(right, cut=not rated)
    teacher = start()
    if "replay" in bandit.steps and "call" not in bandit.steps and not supervised:
        teacher = start() + torch.nn.functional.one_hot(torch.tensor(RIGHT), WORDS) * 2.0
        wanted = lambda table: -divergence(table, teacher)  # noqa: E731
    tables, begin = [start()], start()
    for step in range(STEPS):
        old = tables[max(0, len(tables) - 2)]
        answers = _demonstrations(bandit) if supervised else bandit.draw(old, step)
        batch = bandit.batch(answers)
        gradient = _gradient(bandit, tables[-1], batch, answers, teacher)
        found.is_finite = found.is_finite and bool(gradient.isfinite().all())
        length = gradient.norm()
        if not found.is_finite or length < 1e-9:
            tables.append(tables[-1])
            continue
        tables.append(tables[-1] - STRIDE * gradient / length)
    found.rise = float(wanted(tables[-1]) - wanted(begin))
    answers = _demonstrations(bandit) if supervised else bandit.draw(begin, 99)
    found.on_prompt = _on_prompt(bandit, bandit.batch(answers))
    batch = bandit.batch(answers)
    found.off_measure = float(
        (bandit.logprob(begin, batch) - bandit.reference(begin, batch)).abs().mean()
    )
    if not supervised:
        _look(bandit, found)
    return found


def _gradient(bandit, table, batch, answers, teacher):
    table = table.clone().requires_grad_()
    if "score" in bandit.steps:
        adv, kept = bandit.advantages(answers, batch)
    else:
        adv, kept = torch.zeros(len(answers)), torch.ones(len(answers), dtype=torch.bool)
    if not kept.any():
        return torch.zeros_like(table.detach())
    answers = [answer for answer, keep in zip(answers, kept.tolist(), strict=True) if keep]
    batch = bandit.batch(answers)
    value = bandit.value(
        table, batch, behavior=batch.behavior, ref=bandit.reference(teacher, batch),
        proximal=bandit.logprob(table, batch), adv=adv[kept].detach().float(),
        num_tokens=batch.lengths, truncated=batch.lengths == LENGTH, num_steps=batch.lengths * 0,
    )  # fmt: skip
    return torch.autograd.grad(value, table, allow_unused=True)[0].detach()


def _demonstrations(bandit):
    if "pairs" in bandit.steps:
        name = bandit.steps["pairs"].receiver
        sides = [bandit.python[f"dataset_{name}_{side}"] for side in ("chosen", "rejected")]
        return [(i, side(row), [0.0] * 2) for i, row in enumerate(ROWS) for side in sides]
    return [(i, (RIGHT, END), [0.0] * 2) for i in range(PROMPTS)]


def _demonstrated(table):
    logp = table.log_softmax(-1)
    return (logp[:, 1, RIGHT] + logp[:, 2, END] - logp[:, 1, WRONG]).mean()


def _look(bandit, found):
    """At what a prompt says, at measures, at regularizers, at single tokens."""
    drawn = bandit.steps["draw"].receiver
    row = ROWS[3]
    found.leaks = row.answer in str(bandit.python[f"dataset_{drawn}_prompt"](row))
    table, ref = start(), start(1)
    reads = {each.name for each in bandit.loss.fields}
    for sharp in (table, 4 * table):
        drawn = bandit.batch(bandit.draw(sharp, 99))
        gap = (bandit.logprob(sharp, drawn) - drawn.behavior)[drawn.mask]
        found.off_measure += float(gap.abs().mean())
    pay = [bandit._score(3, (word, END)) for word in (RIGHT, WRONG)]
    found.right_pays = pay[0] > pay[1]
    form = bandit._score(3, (THOUGHT, WRONG, END))
    found.answer_over_form = bandit._score(3, (RIGHT, END)) > form
    found.bare_over_form = float(bandit.graded(bandit.bare(3))) > form
    found.effects = _effects(bandit)
    found.largest = _largest(bandit)
    far = _flat(bandit, leaf := start().requires_grad_(), start(), 1.0, math.exp(95.0), ONE)
    found.is_finite &= bool(torch.autograd.grad(far, leaf)[0].isfinite().all())
    if any(bandit._role(name) == "ref" for name in reads - {*ROW_STATISTICS, "mask"}):
        found.pulls["reference"] = _pull(bandit, table, ref, lambda t: -divergence(t, ref))
    if "entropy" in reads:
        found.pulls["entropy"] = _pull(bandit, table, table, entropy)
    for adv in (1.0, -1.0):
        for ratio in (0.25, 0.95, 1.0, 1.05, 2.0, 4.0):
            found.slopes[adv, ratio] = _slope(bandit, adv, ratio)


class _Counts:
    """The counts of a step: what they are scales a gradient and no more."""

    def __getattr__(self, name):
        return torch.tensor(100.0)


def _on_prompt(bandit, batch):
    """Whether the declared loss has a gradient at tokens of the prompt: the runtime drops them."""
    return any(_prompts_learn(bandit, batch, moved) for moved in (0.0, 0.1))


def _prompts_learn(bandit, batch, moved):
    rows = {each.name for each in bandit.loss.fields if "T" in each.axes}
    leaf = start()[batch.at].requires_grad_()
    logp = leaf.log_softmax(-1)
    chosen = logp.gather(1, batch.word[:, None])[:, 0]
    count = len(batch.lengths)
    x = SimpleNamespace(
        **{n: chosen.detach() - moved for n in rows - {*ROW_STATISTICS, "mask"}},
        **{e.name: torch.ones(count) for e in bandit.loss.fields if e.name not in rows},
        logprob=chosen, entropy=-(logp.exp() * logp).sum(-1), logsumexp=leaf.logsumexp(-1),
        mean_logprob=logp.mean(-1), mask=batch.mask, seq_id=batch.seq,
        seq_valid=torch.ones(count, dtype=torch.bool), dtype=leaf.dtype,
        step=_Counts(),
    )  # fmt: skip
    value = bandit.loss.module.loss(x)[0]
    if not value.requires_grad:
        return False
    gradient = torch.autograd.grad(value, leaf)[0]
    return bool(gradient[~batch.mask].abs().max() > 1e-9)


def _effects(bandit):
    """What a score gains as one of its rewards goes from its least to its greatest value."""
    name = bandit.steps["score"].receiver
    if name not in bandit.program.rubrics:
        return {}
    heads = (), (THOUGHT,), (FILLER,) * 2, (FILLER,) * 3
    answers = [(0, (*h, last, END)[-LENGTH:]) for h in heads for last in (RIGHT, WRONG)]
    found = {}
    for reward in bandit.program.rewards:
        values = [bandit._reward(reward, bandit.rollout(*answer)) for answer in answers]
        others = dict.fromkeys(bandit.program.rewards, 0.5)
        score = bandit._function("rubric", name)
        found[reward] = score(others | {reward: max(values)}) - score(
            others | {reward: min(values)}
        )
    return found


def _largest(bandit):
    """The largest advantage where scores hardly differ, or not at all, in groups that are kept."""
    calls = {
        bandit.program.functions[s.receiver].kind: s
        for s in bandit.program.flow
        if Role.COMPUTES in s.roles
    }
    if "advantage" not in calls or len(calls["advantage"].inputs) > 1 or bandit.size < 2:
        return 0.0
    function = bandit._function("advantage", calls["advantage"].receiver)
    if "group" in _names(function):
        return 0.0
    near = torch.tensor([0.5] * (bandit.size - 1) + [0.501])
    groups = [near] if "keep" in bandit.steps else [near, torch.ones(bandit.size)]
    return max(float((function(g) * torch.ones(1)).abs().max()) for g in groups)


def _flat(bandit, table, ref, adv=0.0, ratio=1.0, answers=None):
    """The loss where all advantages are alike."""
    answers = answers or bandit.draw(table.detach(), 99)
    batch = bandit.batch(answers)
    current = bandit.logprob(table.detach(), batch)
    behavior = torch.where(batch.mask, current - math.log(ratio), 0.0)
    return bandit.value(
        table, batch, behavior=behavior, ref=bandit.reference(ref, batch), proximal=behavior,
        adv=torch.full((len(answers),), adv), num_tokens=batch.lengths,
        truncated=batch.lengths == LENGTH, num_steps=batch.lengths * 0,
    )  # fmt: skip


def _pull(bandit, table, ref, wanted):
    """How far the loss goes where a regularizer should; 0.0 where it moves the loss alone, None
    where it is not there."""
    leaf = table.clone().requires_grad_()
    value = _flat(bandit, leaf, ref)
    step = -torch.autograd.grad(value, leaf)[0]
    aim = torch.autograd.grad(wanted(leaf), leaf)[0]
    found = cosine(step, aim)
    if (
        found is None
        and abs(float(_flat(bandit, table, start(2)).detach() - value.detach())) > 1e-9
    ):
        return 0.0
    return found


def _slope(bandit, adv, ratio):
    """d loss / d logit of the one word of an answer."""
    leaf = start().requires_grad_()
    fields = {each.name for each in bandit.loss.fields} - {*ROW_STATISTICS, "mask"}
    if "adv" not in map(bandit._role, fields):  # what is to be learned is the reference
        value = _flat(bandit, leaf, start() + adv * SHIFT, 0.0, ratio, ONE)
        return float(torch.autograd.grad(value, leaf)[0][0, 1, RIGHT])
    zero = torch.autograd.grad(_flat(bandit, leaf, start(), 0.0, ratio, ONE), leaf)[0]
    full = torch.autograd.grad(_flat(bandit, leaf, start(), adv, ratio, ONE), leaf)[0]
    return float((full - zero)[0, 1, RIGHT])


ONE = [(0, (RIGHT,), [0.0])]
SHIFT = torch.nn.functional.one_hot(torch.tensor(RIGHT), WORDS) * 1.0


# ---- judgement


def damage(base, other):
    """What an edit has broken; "" where training goes on as before."""
    if not other.is_finite:
        return "a gradient or a score is not finite"
    if other.on_prompt and not base.on_prompt:
        return "prompts are trained on"
    if other.leaks and not base.leaks:
        return "the prompt has the answer"
    if other.off_measure > base.off_measure + 0.01:
        return "two measures are compared"
    if other.rise < 0.5 * base.rise:
        return f"the objective rises by {other.rise:.2f}, not {base.rise:.2f}"
    if base.right_pays and not other.right_pays:
        return "a wrong answer scores as much as a right one"
    for over in ("answer_over_form", "bare_over_form"):
        if getattr(base, over) and not getattr(other, over):
            return "the form of an answer pays more than the answer"
    for name, effect in base.effects.items():
        if effect * other.effects.get(name, effect) <= 0 < abs(effect):
            return f"the reward {name} counts for nothing, or the other way"
    if other.largest > max(100.0, base.largest):
        return f"scores that hardly differ give an advantage of {other.largest:.0f}"
    for what, mine in other.pulls.items():
        pull = base.pulls.get(what) or 0.0
        if mine is not None and mine < (0.3 * pull if pull > 0 else -0.3):
            return f"the pull of the {what} is {mine:.2f}, not {pull:.2f}"
    return _bent(base.slopes, other.slopes)


def _bent(base, other):
    scale = abs(base.get((1.0, 1.0), 0.0)), abs(other.get((1.0, 1.0), 0.0))
    for (adv, ratio), slope in base.items():
        was, now = (
            s / max(z, 1e-12) for s, z in zip((slope, other[adv, ratio]), scale, strict=True)
        )
        if (adv, ratio) == (-1.0, 4.0) and abs(now) < 1e-6:
            continue  # as dual clip has it (1912.09729)
        if ratio in (0.25, 1.0, 2.0, 4.0) and (abs(was) < 1e-6) != (abs(now) < 1e-6):
            return f"at ratio {ratio:g} and advantage {adv:g} " + (
                "nothing bounds the step" if abs(was) < 1e-6 else "no longer learns"
            )
        if abs(was) > 1e-6 and abs(now) > 1e-6 and was * now < 0:
            return f"at ratio {ratio:g} and advantage {adv:g} the gradient is reversed"
    powers = [_power(slopes) for slopes in (base, other)]
    if None not in powers and abs(powers[1] - powers[0]) > 0.5:
        return f"the ratio counts {powers[1]:.1f} times, not {powers[0]:.1f}"
    return ""


def _power(slopes):
    up, down = abs(slopes.get((1.0, 1.05), 0.0)), abs(slopes.get((1.0, 0.95), 0.0))
    return math.log(up / down) / math.log(1.05 / 0.95) if up > 1e-9 and down > 1e-9 else None
