"""Templates of `forgec init`: projects made from the pipelines that ship with ForgeDSL.

    pipelines/grpo_math.forge  --derive-->  grpo.forge
    pipelines/templates/*      --fill---->  README.md, rewards/grading.py, pyproject.toml, ...

A template is derived from its pipeline, so that a change of the pipeline changes it too. Paths of
shipped data become `forgedsl:...`, and a declaration may be replaced (a standard reward by a Python
function beside the file).
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from pathlib import Path
from string import Template as Text

from forgedsl.diagnostics import Reporter
from forgedsl.format.printer import format_source
from forgedsl.records import dataclass, field
from forgedsl.source import SourceFile
from forgedsl.syntax import ast, parse
from forgedsl.syntax.trivia import TOKENS

GRADING = 'import python "rewards/grading.py" as grading'
PYTHON_REWARD = {"correct": "reward correct = grading.correct { timeout = 10s }"}
REWARD_FILES = {
    "rewards/grading.py": "the reward in Python",
    "rewards/test_grading.py": "its test: `python -m pytest`",
}
WANDB = re.compile(r",\s*wandb\s*\{[^}]*\}")
"""removed from a template: a new project uploads no metrics"""
INTRO = re.compile(r"(^## .*\n)+", re.MULTILINE)
"""what a pipeline says of itself"""
ANYWHERE = """\
On a host without a GPU the profile `cpu` is selected automatically: a small model and arithmetic,
both shipped with ForgeDSL, so that it runs without changes."""
ON_CPU = (
    "It runs on a CPU without changes: model, tokenizer and arithmetic are shipped with ForgeDSL."
)
PROGRAM = {
    "guesser": "",
    "guesses": 'param interpreter : str = "python3"         # a Python that has the packages',
    "game": (
        'environment game = program([interpreter, "agents/guess.py"], parts = ["solved"]) '
        "{ deadline = 60s, on_error = 0.0 }"
    ),
    "early": "",
    "grade": "rubric grade { score = solved, on_truncated = 0.0, on_error = drop }",
}
"""declarations of guess_agent that differ if a program takes the place of the class"""
COMMON_FILES = {
    "README.md": "how to use the project",
    "pyproject.toml": "settings of lint",
    ".gitignore": "keeps run folders out of git",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A template. `replaced` maps a declaration of the pipeline to the text that replaces it;
    `intro` replaces its description."""

    pipeline: str
    about: str
    data: str
    loss: str
    title: str = ""
    """of the README; by default the name in capitals"""
    needs: str = ""
    """packages or programs that the agent needs; its script says how to install them"""
    first_try: str = "schedule.steps=3"
    change: str = "trainer.optimizer.lr=1e-4"
    imports: str = ""
    intro: str = ""
    replaced: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def _of_others(
    pipeline: str, script: str, *files: str, title: str, about: str, needs: str
) -> Template:
    """Make a template of a pipeline whose agent is a program of another project."""
    return Template(
        pipeline=pipeline,
        title=title,
        about=about,
        data="data/arithmetic.jsonl",
        loss="dapo",
        needs=needs,
        first_try="schedule.steps=3 held_out.limit=8",
        files={
            script: "the agent; its first lines say what it needs",
            **dict.fromkeys(files, "its other part"),
        },
    )


TEMPLATES: dict[str, Template] = {
    "grpo": Template(
        pipeline="grpo_math",
        about="GRPO with a reference model, a reward in Python and a held-out eval.",
        data="data/arithmetic.jsonl",
        loss="grpo",
        imports=GRADING,
        replaced=PYTHON_REWARD,
        files=REWARD_FILES,
    ),
    "sft": Template(
        pipeline="sft_math",
        about="Supervised training of a small model from random weights on packed conversations.",
        data="data/arithmetic_demos.jsonl",
        loss="sft",
        first_try="steps=3 trainer.optimizer.warmup=0",
        change="lr=1e-3",
    ),
    "dapo": Template(
        pipeline="dapo_math",
        about="DAPO: clip-higher, dynamic sampling, a soft penalty for overlong answers, no KL.",
        data="data/arithmetic.jsonl",
        loss="dapo",
        imports=GRADING,
        replaced=PYTHON_REWARD,
        files=REWARD_FILES,
    ),
    "agent": Template(
        pipeline="guess_agent",
        title="An agent",
        about="An agent that asks the policy through OpenAI's protocol: a sum is guessed in turns.",
        data="data/arithmetic.jsonl",
        loss="dapo",
        first_try="schedule.steps=3 held_out.limit=20",
        files={"agents/guesser.py": "the agent"},
    ),
    "program": Template(
        pipeline="guess_agent",
        title="An agent as a program",
        about="An agent that is a program, in a Python of its own or in another language.",
        data="data/arithmetic.jsonl",
        loss="dapo",
        first_try="schedule.steps=3 held_out.limit=20",
        intro="The agent is a program that needs no package: it guesses a sum until it is right.",
        replaced=PROGRAM,
        files={"agents/guess.py": "the agent; its first lines say what it needs"},
    ),
    "verifiers": _of_others(
        "verifiers",
        "agents/verify.py",
        title="verifiers",
        needs="verifiers",
        about="A taskset of verifiers (v1) as the agent, in a Python of its own.",
    ),
    "inspect": _of_others(
        "inspect",
        "agents/evaluate.py",
        title="Inspect",
        needs="Inspect",
        about="A task of Inspect as the agent, in a Python of its own.",
    ),
    "nemo-gym": _of_others(
        "nemo_gym",
        "agents/resources.py",
        "environments/nemo_gym_server.py",
        title="NeMo-Gym",
        needs="NeMo-Gym for its server",
        about="An environment of NeMo-Gym: its resources server has the tools and the reward.",
    ),
    "harbor": _of_others(
        "harbor",
        "agents/trial.py",
        "agents/harbor_host.py",
        title="Harbor",
        needs="Harbor",
        about="A trial of Harbor: its agent asks the policy, its verifier gives the reward.",
    ),
    "distill": Template(
        pipeline="distill_math",
        title="Distillation",
        about="On-policy distillation: the student samples, the teacher scores every token.",
        data="data/arithmetic.jsonl",
        loss="distill",
    ),
    "dpo": Template(
        pipeline="dpo_math",
        about="DPO on pairs of a chosen and a rejected answer, with a frozen reference.",
        data="data/arithmetic_pairs.jsonl",
        loss="dpo",
        first_try="schedule.steps=3 trainer.optimizer.warmup=0",
    ),
}
"""templates by name"""


def project(name: str) -> dict[str, str]:
    """Return the files of a new project: path -> text."""
    template = TEMPLATES[name]
    file = f"{name}.forge"
    return {
        file: pipeline_text(template, file),
        **{path: _of_template(path) for path in template.files},
        "pyproject.toml": _shipped("templates/pyproject.toml"),
        ".gitignore": _shipped("templates/gitignore"),
        "README.md": _readme(name, template, file),
    }


def purposes(name: str) -> dict[str, str]:
    """Return the purpose of each file of a new project: path -> one line."""
    return {f"{name}.forge": "the pipeline", **TEMPLATES[name].files, **COMMON_FILES}


def pipeline_text(template: Template, file: str) -> str:
    """Return the text of a shipped pipeline as it works in a folder of its own."""
    text = _shipped(f"{template.pipeline}.forge")
    text = text.replace(f"pipelines/{template.pipeline}.forge", file)
    text = WANDB.sub("", _with_declarations(text, template))
    if template.intro:
        text = INTRO.sub(f"## {template.intro}\n", text, count=1)
    text = TOKENS.sub(lambda match: _stand_alone(match[0], template.files), text)
    source = SourceFile(file, text)
    return format_source(source, _parsed(source))


def _with_declarations(text: str, template: Template) -> str:
    """Replace declarations, and add the import of their Python module."""
    tree = _parsed(SourceFile(template.pipeline, text))
    edits = [
        (decl.span.start, decl.span.end, template.replaced[name])
        for decl in tree.decls
        if (name := _name(decl)) in template.replaced
    ]
    assert len(edits) == len(template.replaced), (
        "the pipeline has changed, so its template must be adapted"
    )
    if template.imports:
        last = [d for d in tree.decls if isinstance(d, ast.ImportForge)][-1]
        end = text.find("\n", last.span.end)
        edits.append((end, end, "\n" + template.imports))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _name(decl: ast.Node) -> str:
    """Return the name under which a declaration is replaced, or ""."""
    match decl:
        case ast.ImportPython(alias=name) | ast.BlockDecl(name=name):
            return name or ""
        case ast.BindDecl(name=name) | ast.FnDecl(name=name) | ast.Param(name=name):
            return name
    return ""


def _of_template(path: str) -> str:
    """Return the text of a Python file: that of the pipeline, or one written for templates."""
    here = _folder().joinpath(path).exists()
    return _shipped(path if here else f"templates/{Path(path).name}")


def _stand_alone(token: str, own: Container[str]) -> str:
    """Rewrite a string that names shipped data to `forgedsl:...`; return other tokens, and paths of
    the project's `own` files, as they are."""
    name = token.strip('"')
    is_path = re.fullmatch(r'"[\w./-]+"', token) is not None and "/" in name and name not in own
    return f'"forgedsl:{name}"' if is_path and _folder().joinpath(name).exists() else token


def _readme(name: str, template: Template, file: str) -> str:
    rows = [f"| `{path}` | {what} |" for path, what in purposes(name).items()]
    data = _folder() / template.data
    with data.open(encoding="utf-8") as lines:
        row = lines.readline().strip()
    has_profile = "\nprofile cpu " in _shipped(f"{template.pipeline}.forge")
    return Text(_shipped("templates/README.md")).substitute(
        title=f"{template.title or name.upper()} with ForgeDSL",
        about=template.about, template=name, file=file,
        files="\n".join(rows), data=f"forgedsl:{template.data}", row=row, loss=template.loss,
        change=template.change, first_try=template.first_try,
        host=_host(template, has_profile=has_profile),
        profile=" --profile cpu" if has_profile else "",
    )  # fmt: skip


def _host(template: Template, *, has_profile: bool) -> str:
    """Return what the README says on where the project runs, and what must be installed first."""
    if not template.needs:
        return ANYWHERE if has_profile else ON_CPU
    script = next(iter(template.files))
    return (
        f"Before a run, install {template.needs}: the first lines of `{script}` say how, and with\n"
        "which command the run finds it. Model, tokenizer and arithmetic are shipped with\n"
        "ForgeDSL, and train on a CPU."
    )


def _parsed(source: SourceFile) -> ast.File:
    reporter = Reporter()
    tree = parse(source, reporter)
    assert not reporter.has_errors, list(reporter)
    return tree


def _folder() -> Path:
    import forgedsl.pipelines

    return Path(forgedsl.pipelines.__path__[0])


def _shipped(name: str) -> str:
    return _folder().joinpath(name).read_text(encoding="utf-8")
