"""X831 program-not-here: the command of an agent is not on this machine, or cannot be run.

    environment desk = program(["/venvs/agent/bin/python", "desk.py"])     # fires: no such file
    environment desk = program(["python", "desk.py"])                      # silent

A run whose agents cannot be started ends before its first step. The rule is a warning, because
the run may take place on another machine. Install the program, or correct its path.
"""

from __future__ import annotations

import os
from pathlib import Path

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.mistakes.suggest import as_written, did_you_mean, nearest

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for env in view.program.environments.values() if view.shared.on_disk else ():
        if env.body.is_program:
            problem, help_text = _problem(env.body.args["command"][0])
            if problem:
                yield finding(f"agent `{env.name}` {problem}", env.body.span, help=help_text)


def _problem(word: str) -> tuple[str, str]:
    """Return why a command cannot be started on this machine, and what to do; "" if it can."""
    import shutil  # no other part of `forgec lint` needs it

    path = Path(word)
    if "/" not in word:
        known = () if shutil.which(word) else _commands()
        close = did_you_mean(nearest(word, known)) or "write its absolute path"
        return (f"starts `{word}`, which is not on the PATH", close) if known else ("", "")
    if not path.is_absolute():
        return "", ""  # it is copied to the run, and was checked when its name was resolved
    if path.is_dir():
        return f"starts `{word}`, which is a folder", ""
    if not path.exists():
        beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        close = did_you_mean(as_written(word, nearest(path.name, beside)))
        return (
            f"starts `{word}`, which does not exist",
            close or "leave it if the run's hosts have it",
        )
    if not os.access(path, os.X_OK):
        return f"starts `{word}`, which is not executable", f"`chmod +x {word}`"
    return "", ""


def _commands() -> list[str]:
    """Return the commands on the PATH."""
    folders = [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep) if each]
    return sorted({each.name for f in folders if f.is_dir() for each in f.iterdir()}) or [""]
