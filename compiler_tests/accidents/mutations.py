"""Random single edits of shipped pipelines, and what lint and the bandit say of them.

    number -> base, edit -> lint: told or silent; bandit: harmful or harmless

The bases are shipped pipelines without their profiles, with what they take from the library written
out, so that its formulas are edited too. Settings that a bandit has no use for (places, times,
sizes) and reports are left alone.

    python -m compiler_tests.accidents.mutations 1000 [first]    counts, what is missed or told
"""

import random
import re
import sys
from dataclasses import dataclass
from functools import cache

import torch

from .bandit import NoProgram, damage, outcome
from .corpus import FOLDER, PIPELINES, found, pipeline, right

BASES = (
    "grpo_math", "dapo_code", "dapo_math", "cispo_math", "gspo_math", "sapo_math", "rloo_math",
    "reinforce_math", "distill_math", "dpo_math", "sft_math",
)  # fmt: skip
UNSEEN = (
    "gspo_math ppo", "gspo_math dr_grpo(horizon = 1024.0)", "gspo_math gmpo", "gspo_math luspo",
    "gspo_math dppo", "gspo_math gspo_token", "gspo_math tis_ppo", "gspo_math icepop",
    "dpo_math ipo", "sft_math sft(label_smoothing = 0.1)", "sft_math dft",
)  # fmt: skip
"""pipelines with other losses of the library: rules and oracle were not mended after these"""
FRESH = ("smollm_math", "smollm_dpo", "smollm_sft", *(f"invented {i}" for i in range(0, 36, 3)))
"""pipelines, and programs of right/invented.txt: rules and oracle were not mended after these"""
COUNT = 1000
HELPERS = r"(?<![\w.])(k1|k2|k3|importance|surrogate|is_clipped|whiten|whitened)(?=\()"
NUMBER = r"(?<![\w.])\d+\.\d+(?:e-?\d+)?|(?<![\w.])\d+e-?\d+"
FACTORS = (-1, 0, 0.01, 0.1, 0.5, 2, 10, 100)
MEANS = ("token_mean", "seq_mean", "seq_sum")
FIELDS = ("logprob", "behavior", "ref", "adv", "teacher", "ratio")
SETTINGS = {
    "temperature = 1.0": ("temperature = 0.6", "temperature = 1.4"),
    "top_p = 1.0": ("top_p = 0.8", "top_p = 0.95"),
    "sampling.max_tokens = 1024": (
        "sampling { max_tokens = 1024, top_p = 0.8 }", "sampling { max_tokens = 1024, top_k = 3 }",
        "sampling { max_tokens = 1024, temperature = 0.7 }", "sampling { max_tokens = 512 }",
    ),
    "row.question": ("row.answer", "row.instruction"),
    "row.answer": ("row.question",),
    "row.chosen_response": ("row.rejected_response",),
    "row.rejected_response": ("row.chosen_response",),
    "row.instruction": ("row.chosen_response",),
    "titan(policy) { procs = auto": ("titan(policy) { temperature = 0.5, procs = auto",),
}  # fmt: skip


@cache
def base(name):
    """A pipeline with its library functions written out, or with another loss, `PIPELINE LOSS`."""
    name, _, loss = name.partition(" ")
    if name == "invented":
        text, loss = invented()[int(loss)], ""
    else:
        text = pipeline(name)
    text = re.split(r"\n(?=profile )", text)[0] + "\n"
    if loss:
        text = re.sub(r"loss = (rl\.)?\w+(\([^()]*\))?(?=\))", f"loss = rl.{loss}", text)
        text = re.sub(r"^loss \w+\(.*\n", "", text, flags=re.M)
    if loss and "rl\n" not in text:
        text = text.replace("forge 1\n", 'forge 1\nimport "std/rl" as rl\n')
    if loss in ("tis_ppo", "icepop"):
        text = text.replace(
            "replay(rollout,", "replay(rollout, proximal = trainer.logprobs(rollout),"
        )
        text = text.replace(f"rl.{loss}", f"rl.{loss}, minibatches = 2")
    text = re.sub(r" *# forge: allow.*", "", text)  # what a profile needs
    library = (PIPELINES / "std/rl.forge").read_text("utf-8")
    for kind, pattern in (("loss", r"loss = rl\.(\w+)"), ("advantage", r"adv = rl\.(\w+)\("),
                          ("filter", r"keep\(rl\.(\w+)\(")):  # fmt: skip
        for used in re.findall(pattern, text):
            body = re.search(rf"^{kind} {used}\(.*?(?=\n\n|\Z)", library, re.S | re.M)[0]
            body = re.sub(HELPERS, r"rl.\1", body)
            text = re.sub(rf"\brl\.{used}\b", f"own_{used}", text)
            body = body.replace(f"{kind} {used}(", f"{kind} own_{used}(", 1)
            text = text.replace("\nflow train", f"\n{body}\nflow train", 1)
    for name in re.findall(r"^param (\w+)", text, re.M):
        if len(re.findall(rf"\b{name}\b", text)) == 1:  # what a profile needs
            text = re.sub(rf"^param {name}\b.*\n", "", text, flags=re.M)
    return text if "rl." in text else text.replace('import "std/rl" as rl\n', "")


@cache
def invented():
    """The texts of right/invented.txt."""
    names = set((FOLDER / "right/invented.txt").read_text("utf-8").splitlines())
    return [case.text for case in right() if case.name in names]


@dataclass(frozen=True)
class Edit:
    what: str
    start: int
    end: int
    new: str


def edits(text):
    """All single edits of a text, by kind."""
    found = []

    def each(what, pattern, new, within=()):
        for start, end in within or formulas(text):
            for match in re.compile(pattern).finditer(text, start, end):
                for other in new(match) if callable(new) else new:
                    if other != match[0]:
                        found.append(Edit(what, *match.span(), other))

    each("sign of a term", r" [+-] ", lambda m: [" - " if "+" in m[0] else " + "])
    each("minus lost", r"(?<=[(= ])-(?=[a-z(])", [""])
    each("sides of a difference", r"(\w+) - (\w+)(?=[,)\n ])", lambda m: [f"{m[2]} - {m[1]}"])
    each("comparison", r" [<>]=? ", lambda m: [m[0].translate(str.maketrans("<>", "><"))])
    each("min and max", r"\b(min|max)(?=\()", lambda m: ["max" if m[0] == "min" else "min"])
    each("number", NUMBER, lambda m: [f"{float(m[0]) * k:g}" for k in FACTORS])
    each("mask", r", mask\)", [", not mask)", ", logprob_of_all)"])
    each("stop", r"stop\(([^()]*(?:\([^()]*\)[^()]*)*)\)", lambda m: [f"({m[1]})"])
    each(
        "stop added", r"(?<=[ (-])(ratio|logprob|kl|gain|pg)(?= [*-])", lambda m: [f"stop({m[0]})"]
    )
    each("baseline", r"\(?r - mean\(r, G\)\)?", ["r", "(mean(r, G) - r)"])
    each("normalizer", r"token_mean|seq_mean|seq_sum", lambda m: MEANS)
    each("divisor", r" / \(std\(r, G\) \+ 1e-6\)", ["", " / std(r, G)", " * (std(r, G) + 1e-6)"])
    each("name", r"\b(logprob|behavior|ref|adv|ratio|teacher)\b(?! *[:=])", lambda m: FIELDS)
    each("factor", r"(?<=[\w)]) \* ", [" / ", " + "])
    each("dropped factor", r" \* adv\b", [""])
    for old, new in SETTINGS.items():
        each("setting", re.escape(old), new, [(0, len(text))])
    return [e for e in found if "logprob_of_all" not in e.new] + [
        Edit(e.what, e.start, e.end, ", is_finite(behavior))")
        for e in found if "logprob_of_all" in e.new
    ]  # fmt: skip


def formulas(text):
    """Where bodies of losses, advantages, filters, rewards and scores stand; no report."""
    found = []
    for match in re.finditer(r"^(loss|advantage|filter|reward) \w+\(", text, re.M):
        head = re.compile(r"\) *(-> [^={]*)?(\{|=)").search(text, match.end())
        if head is None or "sandbox" in text[head.end() : head.end() + 20]:
            continue
        end = text.find("\n}", head.end()) if head[2] == "{" else -1
        if head[2] == "=" or "\n" not in text[head.end() : end]:
            end = text.find("\n", head.end())
        at = head.end()
        for line in text[head.end() : end].split("\n"):
            stop = line.find("#") if "#" in line else len(line)
            if not line.strip().startswith("report"):
                found.append((at, at + stop))
            at += len(line) + 1
    for match in re.finditer(r"score +=(?! \w+\()(.*?)(,|\n)", text):
        found.append(match.span(1))
    return found


@cache
def all_edits():
    """(base, edit), each once: all of the shipped pipelines, then some with other losses, in a
    random order that is always the same."""
    return (*_shuffled(BASES, 16), *_shuffled(UNSEEN, 17))[:COUNT]


@cache
def fresh_edits():
    """As many as are asked for, numbered from COUNT on."""
    return _shuffled(FRESH, 19)


def _shuffled(names, seed):
    found = list(dict.fromkeys((name, edit) for name in names for edit in edits(base(name))))
    random.Random(seed).shuffle(found)
    return found


def mutation(number):
    """(name of the base, edit, text)"""
    name, edit = all_edits()[number] if number < COUNT else fresh_edits()[number - COUNT]
    text = base(name)
    return name, edit, text[: edit.start] + edit.new + text[edit.end :]


MISTAKES = {
    ("dpo_math", "rejected = sum(logprob.rejected + ref.rejected, T, mask.rejected)"):
    "adds the reference, and the bandit's answers are too short to saturate the loss",
}  # fmt: skip
"""mistakes that the bandit cannot see, by base and edited line"""


@cache
def trained(name):
    return outcome(base(name))


@dataclass(frozen=True)
class Verdict:
    """`damage`: what the bandit says, "" for harmless, None where the compiler takes no program;
    `told`: the codes of lint."""

    name: str
    damage: str | None
    told: tuple[str, ...]


def verdict(number):
    torch.set_num_threads(1)
    name, edit, text = mutation(number)
    line = text.splitlines()[text.count("\n", 0, edit.start)].strip()
    shown = f"{number} {name}, {edit.what}: {line}"
    told = tuple(sorted({code for code, _, _ in found(text)}))
    try:
        wrong = damage(trained(name), outcome(text)) or MISTAKES.get((name, line), "")
    except NoProgram:
        wrong = None
    return Verdict(shown, wrong, told)


def rates(verdicts):
    """(programs, harmful, caught, harmless, false alarms)"""
    programs = [v for v in verdicts if v.damage is not None]
    harmful = [v for v in programs if v.damage]
    harmless = [v for v in programs if not v.damage]
    return (
        len(programs), len(harmful), sum(bool(v.told) for v in harmful),
        len(harmless), sum(bool(v.told) for v in harmless),
    )  # fmt: skip


if __name__ == "__main__":
    asked = range(*sorted(map(int, (*sys.argv[1:], 0)[:2])))
    verdicts = [verdict(number) for number in asked]
    for each in verdicts:
        if each.damage is not None and bool(each.damage) != bool(each.told):
            print("MISSED" if each.damage else "FALSE ", each.name, "|", each.damage, each.told)
    programs, harmful, caught, harmless, false = rates(verdicts)
    print(f"{len(verdicts)} edits, {programs} programs: {caught} of {harmful} harmful are told,")
    print(f"and {false} of {harmless} harmless; the compiler refuses {len(verdicts) - programs}")
