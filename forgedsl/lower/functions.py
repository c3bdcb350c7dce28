"""Lowers the rewards, rubrics, environments and losses of a program to those of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Reporter, error
from forgedsl.emit.python import function_name
from forgedsl.hir.judges import judge_of, placeholders, scorer_of
from forgedsl.hir.pycalls import Inputs, inputs_of
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import (
    Constructor,
    Decl,
    EnvironmentDecl,
    Program,
    PythonFunction,
    Ref,
    RewardDecl,
    model_of,
    rewards_of,
)
from forgedsl.lower import job
from forgedsl.lower.modules import modules_beside
from forgedsl.lower.packages import installed, versions
from forgedsl.lower.paths import InputFiles
from forgedsl.plan.environments import played
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.services.registry import kind_of
from forgedsl.shipped import locate
from forgedsl.source import SourceFile, Span
from forgedsl.types.flow import Role

PLACEHOLDERS = {"prompt": "messages"}
"""inputs for placeholders of a judge's prompt, where the names differ"""
BACKOFF = 8.0
"""maximum seconds that the client of an endpoint waits before it repeats a request"""


def scores_used(program: Program, graph: Graph) -> tuple[str, ...]:
    """Return the rubrics and rewards that score in the flow or in evals."""
    used = [node.target for node in graph.having(Role.SCORES)]
    for decl in program.evals.values():
        score = decl.settings["score"].value
        used += [score.name] if isinstance(score, Ref) else []
    return tuple(dict.fromkeys(used))


def lower_rewards(program: Program, graph: Graph, files: InputFiles) -> dict[str, job.Reward]:
    """Lower the rewards of all scores in use."""
    used = {
        reward for score in scores_used(program, graph) for reward in rewards_of(program, score)
    }
    return {
        name: _reward(program, decl, files)
        for name, decl in program.rewards.items()
        if name in used or decl.settings["monitor"].value
    }


def _reward(program: Program, decl: RewardDecl, files: InputFiles) -> job.Reward:
    settings = {key: setting.value for key, setting in decl.settings.items()}
    on_error = settings["on_error"]
    common = {
        "procs": settings["procs"],
        "timeout": settings["timeout"],
        "retries": settings["retries"],
        "on_error": on_error if isinstance(on_error, int | float) else "drop",
        "memory": settings["memory"],
        "cache": settings["cache"],
        "max_failed": settings["max_failed"],
        "monitor": settings["monitor"],
    }
    if (judge := judge_of(decl)) is not None:
        return _judge(judge, program.services[judge.args["service"]], settings, common)
    if (scorer := scorer_of(decl)) is not None:
        service = scorer.args["service"]
        return job.Reward(kind="scorer", function="score", service=service, **common)
    if isinstance(decl.body, Constructor):
        name = decl.body.name
        if name == REASONING_GYM.name:
            common |= {"inputs": {"entry": "column entry"}, "packages": installed([name])}
        return job.Reward(kind="std", function=name, args=dict(decl.body.args), **common)
    if isinstance(decl.body, PythonFunction):
        return _python(decl, decl.body, files, common)
    return job.Reward(kind="program", function=function_name("reward", decl.name), **common)


def _python(
    decl: RewardDecl, body: PythonFunction, files: InputFiles, common: dict[str, Any]
) -> job.Reward:
    """Lower a reward in Python, with its module and the files that it reads."""
    path, sha256 = files.add(body.module, body.span)
    inputs = inputs_of(body)
    # lint reports this too, but may not have run before `plan` and `run`
    if isinstance(inputs, str):
        message = f"`{body.name}` {inputs}"
        files.reporter.report(error("X802", "signature", message, decl.span))
        inputs = Inputs(by_name={})
    return job.Reward(
        kind="python",
        function=body.name,
        path=path,
        sha256=sha256,
        modules=_modules(body.module, body.span, files),
        packages=versions(_with_modules(body.module, files)),
        files=dict(
            files.add(each, decl.settings["files"].origin.span or decl.span)
            for each in decl.settings["files"].value
        ),
        makes=body.makes,
        args=dict(body.args),
        inputs=inputs.by_name,
        positional=inputs.by_place,
        lists=inputs.lists,
        concurrency=decl.settings["concurrency"].value if body.asynchronous else None,
        **common,
    )


def _judge(
    judge: Constructor, service: Decl, settings: dict[str, Any], common: dict[str, Any]
) -> job.Reward:
    """Lower a reward given by a model: an engine of the run, or an endpoint. The client of an
    endpoint repeats a failed request up to `retries` times within one call."""
    args = {key: plain_argument(v) for key, v in judge.args.items() if key != "service"}
    inputs = {
        placeholder: PLACEHOLDERS.get(placeholder, placeholder.replace("row.", "column "))
        for placeholder in placeholders(args["prompt"])
    }
    common = {**common, "inputs": inputs, "concurrency": settings["concurrency"]}
    if not kind_of(service.ctor).remote:
        return job.Reward(kind="judge", function="score", args=args, service=service.name, **common)
    args |= {key: setting.value for key, setting in service.settings.items()}
    args |= {"model": model_of(service), "timeout": common["timeout"], "retries": common["retries"]}
    twice = 2  # a reply without a grade is requested once more
    common["timeout"] = twice * (args["timeout"] + BACKOFF) * (args["retries"] + 1)
    return job.Reward(kind="endpoint", function="score", args=args, **(common | {"retries": 0}))


def _modules(path: str, span: Span, files: InputFiles) -> dict[str, job.Module]:
    """Add the modules beside a Python file that it imports to the job."""
    found = {}
    for name, file in sorted(modules_beside(locate(path, files.base_dir)).items()):
        written = file if Path(path).is_absolute() else os.path.relpath(file, files.base_dir)
        inner, sha256 = files.add(str(written), span)
        found[name] = job.Module(path=inner, sha256=sha256)
    return found


def _with_modules(path: str, files: InputFiles) -> list[Path]:
    """Return a Python file of the program, and the modules beside it that it imports."""
    file = locate(path, files.base_dir)
    return [file, *modules_beside(file).values()]


def lower_environments(
    program: Program, graph: Graph, files: InputFiles
) -> dict[str, job.Environment]:
    """Lower the environments of the flow and of evals."""
    found = {}
    for name in played(program, graph):
        decl = program.environments[name]
        if decl.body.is_program:
            found[name] = _program(decl, files)
            continue
        if decl.body.is_gymnasium:
            found[name] = _gymnasium(decl, files)
            continue
        path, sha256 = files.add(decl.body.module, decl.body.span)
        found[name] = job.Environment(
            type_name=decl.body.name,
            args={key: plain_argument(value) for key, value in decl.body.args.items()},
            path=path,
            sha256=sha256,
            modules=_modules(decl.body.module, decl.body.span, files),
            tools=tuple(tool.name for tool in decl.body.tools),
            parts=decl.body.parts,
            agent=decl.body.agent,
            scripts=dict(
                files.add(script, decl.body.span)
                for script in decl.body.scripts
                if locate(script, files.base_dir).is_file()  # else it is a path on another host
            ),
            packages=versions(_with_modules(decl.body.module, files)),
            **{key: setting.value for key, setting in decl.settings.items()},
        )
    return found


def _program(decl: EnvironmentDecl, files: InputFiles) -> job.Environment:
    """Lower an agent that is a program, with the files that it needs."""
    body, args = decl.body, decl.body.args
    named = {script: files.add(script, body.span) for script in body.scripts}
    return job.Environment(
        type_name=body.name,
        path="",
        sha256="",
        parts=body.parts,
        agent=True,
        scripts=dict(named.values()),
        program=job.AgentProgram(
            command=tuple(_word_of_job(word, named) for word in args["command"]),
            variables=tuple(args["variables"]),
            stdin=args["stdin"],
            reward=args["reward"],
            concurrency=args["concurrency"],
        ),
        packages=versions(
            [locate(word, files.base_dir) for word in body.scripts if word.endswith(".py")],
            args["command"][0],
        ),
        **{key: setting.value for key, setting in decl.settings.items()},
    )


def _word_of_job(word: str, named: Mapping[str, tuple[str, str]]) -> str:
    """Return a word of a command with the place in the job of the file, or of the folder of
    `folder/{target}`, that it names."""
    from forgedsl.hir.programs import target_folder

    if word in named:
        return named[word][0]
    place = target_folder(word)
    inside = next((each for each in named if place and each.startswith(f"{place}/")), "")
    return named[inside][0].removesuffix(inside) + word if inside else word


def _gymnasium(decl: EnvironmentDecl, files: InputFiles) -> job.Environment:
    """Lower an environment of gymnasium, with the file that registers it, if there is one. If the
    name is an entry point, this file can be the module that it names."""
    body = decl.body
    args = {key: plain_argument(value) for key, value in body.args.items()}
    if body.options:
        args["options"] = {key: plain_argument(value) for key, value in body.options.items()}
    path, sha256, modules, packages = "", "", dict[str, job.Module](), dict[str, str]()
    if body.module:
        path, sha256 = files.add(body.module, body.span)
        modules = _modules(body.module, body.span, files)
        modules[Path(body.module).stem] = job.Module(path=path, sha256=sha256)
        packages = versions(_with_modules(body.module, files))
    return job.Environment(
        type_name=body.name,
        args=args,
        path=path,
        sha256=sha256,
        modules=modules,
        parts=body.parts,
        gymnasium=True,
        packages=packages | installed(body.packages),
        **{key: setting.value for key, setting in decl.settings.items()},
    )


def plain_argument(value: Any) -> Any:
    """Convert a value to plain Python: durations to seconds, sizes to bytes."""
    if isinstance(value, list):
        return [plain_argument(item) for item in value]
    return float(value) if isinstance(value, float) else value


def lower_rubrics(program: Program, graph: Graph) -> dict[str, job.Rubric]:
    """Lower the rubrics in use."""
    return {
        name: job.Rubric(
            function=function_name("rubric", name),
            rewards=rewards_of(program, name),
            on_truncated=decl.settings["on_truncated"].value,
            on_error=decl.settings["on_error"].value,
        )
        for name, decl in program.rubrics.items()
        if name in scores_used(program, graph)
    }


def lower_losses(
    program: Program, graph: Graph, reporter: Reporter, sources: Mapping[str, SourceFile]
) -> dict[str, job.Loss]:
    """Lower and emit the losses of steps and evals. A loss with a mistake is reported and left
    out."""
    from forgedsl.lower.loss import lower_loss

    measured = (decl.settings["loss"].value for decl in program.evals.values())
    found = {}
    stepped = (loss for loss, _ in graph.step.terms)
    for key in dict.fromkeys((*stepped, *(ref.name for ref in measured if ref is not None))):
        loss = lower_loss(program.functions[key], reporter, sources)
        if loss is None:
            continue
        tree = loss.tree
        for name, source in sources.items():  # a job has names of files, not their folders
            tree = tree.replace(f'@"{name}"', f'@"{file_name(source.name)}"')
        found[key] = loss.model_copy(update={"tree": tree})
    return found


def file_name(path: str) -> str:
    """Return the last part of a path of any operating system."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]
