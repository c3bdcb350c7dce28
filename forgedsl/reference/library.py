"""docs/reference/std_rl.md: the standard library, from pipelines/std/rl.forge and the schemas."""

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.hir.modules import Loader
from forgedsl.reference.markdown import GENERATED, code, join, table
from forgedsl.reference.module import Page
from forgedsl.reference.settings import default_text, type_text
from forgedsl.schema.constructors import STANDARD_REWARDS
from forgedsl.settings import Signature
from forgedsl.syntax import ast

INTRODUCTION = """\
`import "std/rl" as rl` gives these names. It is written in the language itself; `forgec explain
NAME` prints one entry, and a file may copy one and change it. Parameters are given where a function
is used: `loss = rl.dapo(clip_high = 0.3)`, `rl.group_norm(score)`."""


def page() -> str:
    """The whole reference."""
    return standard("std/rl")


def standard(name: str) -> str:
    """The page of a standard module."""
    doc = module_page(name)
    parts = [f"# {doc.title}", GENERATED, INTRODUCTION, *_overview(doc), *_rewards()]
    for kind, title in (("advantage", "Advantages"), ("filter", "Filters"), ("loss", "Losses"),
                        ("fn", "Functions")):  # fmt: skip
        found = [d for d in doc.file.decls if isinstance(d, ast.FnDecl) and d.kind == kind]
        if found:
            parts += [f"## {title}", *(doc.function(d) for d in found)]
    return join(parts)


def entry(name: str) -> str | None:
    """The entry of one function or reward of the standard library, or None."""
    doc = module_page("std/rl")
    for decl in doc.file.decls:
        if isinstance(decl, ast.FnDecl) and decl.name == name:
            return doc.function(decl).replace("### ", "# ", 1)
    if name in STANDARD_REWARDS:
        return join(_reward(STANDARD_REWARDS[name])).replace("### ", "# ", 1)
    return None


def module_page(name: str) -> Page:
    """A standard module, ready to be documented."""
    functions, _ = api.load_functions(name)
    loader = Loader(Reporter())
    module = loader.standard(name)
    (source,) = loader.sources.values()
    return Page(title=name, file=module.file, source=source, functions=functions)


def _overview(doc: Page) -> list[str]:
    rows = [
        (f"[{d.name}](#{d.name})", d.kind, " ".join(d.doc.split()))
        for d in doc.file.decls
        if isinstance(d, ast.FnDecl)
    ]
    return [table(("name", "kind", "what"), rows)]


def _rewards() -> list[str]:
    parts = ["## Rewards", "Built in; `reward correct = rl.math_equal(tolerance = 1e-6)`."]
    for signature in STANDARD_REWARDS.values():
        parts += _reward(signature)
    return parts


def _reward(signature: Signature) -> list[str]:
    rows = [(code(p.name), type_text(p.type), default_text(p)) for p in signature.params]
    return [
        f"### {signature.name}",
        f"{signature.doc[:1].upper()}{signature.doc[1:]}.",
        table(("parameter", "value", "default"), rows) if rows else "",
    ]
