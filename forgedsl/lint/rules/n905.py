"""N905 secret: the file contains something that looks like a token or a password.

    logging { wandb { project = "x", entity = "hf_abcdefghijklmnopqrstuvwxyz01" } }       # fires
    logging { wandb { project = "x", entity = env("WANDB_ENTITY") } }       # silent

Files are shared and committed, and job.json keeps their values. Read it from the environment:
`env("HF_TOKEN")`. A recipe of verl was published with its key (#670).
"""

import re
from functools import lru_cache

from forgedsl.diagnostics import Diagnostic
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

finding = rule(__doc__, "E")
SECRET = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9-]{20,}|AIza[A-Za-z0-9_-]{35}|glpat-[A-Za-z0-9_-]{20,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
NAMED = re.compile(r"(token|secret|password|api_key|apikey)$", re.IGNORECASE)
NAMED_ANYWHERE = re.compile(r"(token|secret|password|api_key|apikey)\s*:", re.IGNORECASE)
LONG = re.compile(r"[A-Za-z0-9+/_=-]{20,}")


def check(view: View) -> Findings:
    source = view.sources[view.program.file]
    if not _is_suspicious(source.text):
        return
    for decl in view.file.decls:
        for node in walk(decl):
            if isinstance(node, ast.String) and SECRET.search(node.value):
                yield _report(node)
            elif isinstance(node, ast.Param) and NAMED.search(node.name):
                default = node.default
                if isinstance(default, ast.String) and LONG.fullmatch(default.value):
                    yield _report(default)


@lru_cache(maxsize=4)  # equal for all views of a file, so computed once
def _is_suspicious(text: str) -> bool:
    return bool(SECRET.search(text) or NAMED_ANYWHERE.search(text))


def _report(node: ast.String) -> Diagnostic:
    return finding(
        "this looks like a secret",
        node.span,
        help='read it from the environment, `env("NAME")`, and revoke this one',
    )
