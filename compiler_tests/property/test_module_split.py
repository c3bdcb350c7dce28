"""Every shipped pipeline, cut in two, gives the job that it gives in one piece.

What the file declares goes into a module, what happens (flow, schedule, evals, settings of the run)
stays and names it as `parts.NAME`; of each profile the module keeps what is about its declarations.
"""

import json
import os
import re
from pathlib import Path

import pytest

from forgedsl.diagnostics import Reporter
from forgedsl.passes import Request, compile_program
from forgedsl.schema.kinds import KINDS
from forgedsl.source import SourceFile
from forgedsl.syntax import ast, parse
from forgedsl.syntax.walk import walk

FOLDER = Path(__file__).parents[2] / "pipelines"
PIPELINES = sorted(FOLDER.glob("*.forge"))
HAPPENS = {"flow", "eval", *(kind.name for kind in KINDS.values() if kind.singleton)}
DEEP = bool(os.environ.get("FORGE_DEEP"))


def mark(number):
    """Every fifth pipeline is a case of `make test`."""
    return pytest.mark.full if number % 5 else ()


def stays(node, evals):
    """Whether a declaration, or an item of a profile, says what happens in a run."""
    match node:
        case ast.BlockDecl():
            return node.kind in HAPPENS
        case ast.FnDecl() | ast.BindDecl():  # a program watches what it declares itself
            items = node.settings.items if node.settings is not None else ()
            return any(isinstance(i, ast.Assign) and i.path.parts == ("monitor",) for i in items)
        case ast.Assign():
            return node.path.parts[0] in HAPPENS | evals
        case ast.Nested():
            return node.name in HAPPENS | evals
    return False


def qualified(text, nodes, names):
    """The text of nodes in which names of the module are `base.NAME`."""
    found = []
    for node in nodes:
        piece = text[node.span.start : node.span.end]
        targets = {id(part.path) for part in walk(node) if isinstance(part, ast.Assign)}
        heads = {
            part.span.start - node.span.start
            for part in walk(node)
            if isinstance(part, ast.Path) and part.parts[0] in names and id(part) not in targets
        }
        for at in sorted(heads, reverse=True):
            piece = f"{piece[:at]}parts.{piece[at:]}"
        found.append(piece)
    return found


def cut(text):
    """(module, program) of a pipeline."""
    file = parse(SourceFile("x.forge", text), Reporter())
    evals = {d.name for d in file.decls if isinstance(d, ast.BlockDecl) and d.kind == "eval"}
    names = {
        d.name
        for d in file.decls
        if hasattr(d, "name") and d.name and not stays(d, evals)
        and not (isinstance(d, ast.BlockDecl) and d.kind == "profile")
    }  # fmt: skip
    names |= {d.alias for d in file.decls if isinstance(d, ast.ImportForge | ast.ImportPython)}
    kept = qualified(text, [d for d in file.decls if stays(d, evals)], names)
    for decl in file.decls:
        if isinstance(decl, ast.BlockDecl) and decl.kind == "profile":
            items = qualified(text, [i for i in decl.block.items if stays(i, evals)], names)
            kept.append("\n".join([f"profile {decl.name} {{", *items, "}"]))
    module = text
    for decl in file.decls:
        is_profile = isinstance(decl, ast.BlockDecl) and decl.kind == "profile"
        for node in (decl, *(decl.block.items if is_profile else ())):
            if stays(node, evals):
                start, end = node.span.start, node.span.end + (text[node.span.end] == ",")
                module = module[:start] + re.sub(r"[^\n]", " ", text[start:end]) + module[end:]
    return module, "\n\n".join(['forge 1\n\nimport "x" as parts', *kept]) + "\n"


def job_of(path, profile):
    compiled = compile_program(Request(path=path, profile=profile))
    assert not compiled.loaded.reporter.has_errors, [
        f"{d.code} {d.message}" for d in compiled.loaded.reporter
    ]
    text = json.dumps(compiled.state.job.job.model_dump(mode="json"))
    found = json.loads(re.sub(r"\bparts\.|parts_", "", text))
    for part in ("params", "origins", "content_hash", "topology"):
        del found[part]
    for loss in found["losses"].values():
        loss["tree"] = re.sub(r'@"[^"]+" \d+:\d+', "", loss["tree"])
    for node in found["nodes"]:
        del node["id"], node["origin"]
    found["program"] = sorted(line.partition("  #")[0] for line in found["program"].splitlines())
    return found


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=mark(k)) for k, path in enumerate(PIPELINES)],
)
def test_a_pipeline_cut_in_two_is_the_same_job(path, tmp_path):
    text = path.read_text("utf-8")
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
        for data in (
            "prompts",
            "rewards",
            "data",
            "models",
            "tokenizers",
            "environments",
            "agents",
        ):
            (tmp_path / name / data).symlink_to(FOLDER / data)
    (tmp_path / ".smollm2").mkdir()  # what `make smollm` makes beside the folder
    module, rest = cut(text)
    whole, program = tmp_path / "whole" / "x.forge", tmp_path / "cut" / "two.forge"
    whole.write_text(text, "utf-8")
    program.with_name("x.forge").write_text(module, "utf-8")
    program.write_text(rest, "utf-8")
    profiles = re.findall(r"^profile (\w+)", text, re.MULTILINE)
    for profile in ("none", *profiles) if DEEP else ("none", *profiles[:1]):
        one, two = job_of(whole, profile), job_of(program, profile)
        one["name"] = two["name"]
        one["summary"][0] = two["summary"][0]
        for part in one:
            assert one[part] == two[part], (profile, part)
