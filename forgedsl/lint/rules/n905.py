"""N905 secret: the file, or Python that it imports, contains something like a token or a password.

    logging { wandb { project = "x", entity = "hf_abcdefghijklmnopqrstuvwxyz01" } }       # fires
    launcher = slurm("gpu", setup = ["export WANDB_API_KEY=e668fbfb1fd84f5f4e9fdc0c43e0e4bbaba8"])
    url = "https://me:passw0rd9x@judge.example.org/v1"         # fires, like the two lines above
    service judge : openai("m") { url = "https://judge.example.org/v1", key = "JUDGE_KEY" } # silent

Files are shared and committed, and job.json keeps their values. Recipes were published with their
keys in verl #670, naver-ai DUO #2 and exUMI #2. Revoke the key, and set the new one in the shell
that starts the run: `export WANDB_API_KEY=...`. The tools read `HF_TOKEN` and `WANDB_API_KEY` by
themselves. For an endpoint, `key` names the variable. In Python, read `os.environ["NAME"]`.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from forgedsl.diagnostics import Diagnostic
from forgedsl.ir.program import PythonFunction
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

finding = rule(__doc__, "E")
SECRET = (
    r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9-]{20,}|AIza[A-Za-z0-9_-]{35}|glpat-[A-Za-z0-9_-]{20,}"
    r"|wandb_v\d_[A-Za-z0-9_]{20,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""tokens of Hugging Face, OpenAI, GitHub, AWS, Slack, Google, GitLab, W&B, and private keys"""
NAME = r"(?:token|secret|password|api_?key|_key)"
NAMED = r"(?i)(token|secret|password|api_key|apikey)$"
NAMED_ANYWHERE = r"(?i)(token|secret|password|api_key|apikey)\s*:"
LONG = r"[A-Za-z0-9+/_=-]{20,}"
VALUE = r"(?=[\w+/.-]*\d)(?=[\w+/.-]*[A-Za-z])[A-Za-z0-9][\w+.-]{11,}"
"""12 characters or more, among them a letter and a digit, and neither a path nor a `$VARIABLE`"""
MARKS = (
    "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "akia", "xox", "aiza",
    "glpat-", "wandb_v", "-----begin", "token=", "secret=", "password=", "apikey=", "_key=", "://",
)  # fmt: skip
"""small letters of which SECRET and GIVEN need one; to compile them takes 1 ms"""
GIVEN = rf"(?i){NAME}=[\"']?{VALUE}(?![\w/])|://[^/\s:@]+:[^/\s@${{]{{6,}}@"
"""`WANDB_API_KEY=e668...` of a shell, `?api_key=7f3k...` and `//user:password@` of an address"""
IN_PYTHON = (
    rf"""(?i)(?:{NAME}|authorization)\w*["']?\]?\s*[=:]\s*["']({VALUE}|(?i:bearer) {VALUE})["']"""
)
"""`os.environ["JUDGE_KEY"] = "7f3k..."`, `api_key="7f3k..."`, `{"token": "7f3k..."}`"""


def check(view: View) -> Findings:
    source = view.sources[view.program.file]
    for file in _python(view):
        found = re.search(SECRET, file.text) or re.search(IN_PYTHON, file.text)
        if found is not None:
            yield _report(Span(file.name, found.start(), found.end()))
    if not _is_suspicious(source.text):
        return
    for decl in view.file.decls:
        for node in walk(decl):
            if isinstance(node, ast.String) and _is_secret(node.value):
                yield _report(node.span)
            elif isinstance(node, ast.Param) and re.search(NAMED, node.name):
                default = node.default
                if isinstance(default, ast.String) and re.fullmatch(LONG, default.value):
                    yield _report(default.span)


@lru_cache(maxsize=4)  # equal for all views of a file, so computed once
def _is_suspicious(text: str) -> bool:
    return _is_secret(text) or bool(re.search(NAMED_ANYWHERE, text))


def _is_secret(text: str) -> bool:
    small = text.casefold()
    return any(mark in small for mark in MARKS) and bool(
        re.search(SECRET, text) or re.search(GIVEN, text)
    )


def _python(view: View) -> Iterator[SourceFile]:
    """Yield the Python files of rewards and environments, and what these import of the same tree,
    once each."""
    bodies = [reward.body for reward in view.program.rewards.values()]
    files = {body.module for body in bodies if isinstance(body, PythonFunction)}
    played = (env.body for env in view.program.environments.values())
    files |= {body.module for body in played if body.module}
    if files and view.folder is not None:
        from forgedsl.lint.follow.programs import files_of  # most programs have no Python

        read = files_of(view)
        files = {each for name in files for each in read.imported(name)} | files
    for name in sorted(files) if view.folder is not None else ():
        assert view.folder is not None
        if name not in view.sources:
            view.sources[name] = SourceFile(name, (view.folder / name).read_text("utf-8"))
        yield view.sources[name]


def _report(span: Span) -> Diagnostic:
    return finding(
        "this looks like a secret: whoever reads the file, or the job made from it, can use it",
        span,
        help="revoke it, and pass the new one as an environment variable, `export NAME=...` in the "
        "shell that starts the run",
    )
