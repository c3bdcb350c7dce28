"""X834 package-not-here: the package of an environment or of rows is not installed on this machine.

    environment maze = gymnasium("mazes:Maze-v0")     # fires: there is no package mazes
    environment lake = gymnasium("FrozenLake-v1")     # silent: gymnasium is installed
    source = reasoning_gym("leg_counting")            # silent: reasoning-gym is installed
    program(["/venvs/a/bin/python", "verify.py"])     # fires if this Python lacks what it imports

Without gymnasium, or the package of an environment, the names, arguments and spaces of environments
are not checked. Without reasoning-gym, the names and arguments of tasks are not checked. The job
does not record the version of the missing package, and a run that cannot import it ends before its
first step. The rule is a warning, because the run may take place on another machine. Install
the package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic
from forgedsl.ir.program import EnvironmentDecl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.sources import all_sources, is_made
from forgedsl.lint.view import View
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.shipped import locate

finding = rule(__doc__, "W")
INSTALL = re.compile(r"-m pip install (?:-q )?([^\n\"'`{]+)")
"""how a script says what it needs"""
OURS = {
    "gymnasium": 'pip install "forgedsl[gymnasium]"',
    REASONING_GYM.name: 'pip install "forgedsl[reasoning-gym]"',
}


def check(view: View) -> Findings:
    for env in view.program.environments.values():
        for package in env.body.packages if env.body.is_gymnasium else ():
            if _is_missing(package):
                yield finding(
                    f"environment `{env.name}` needs the package {package}, which is not installed "
                    "here, so its name and arguments are not checked",
                    env.body.span,
                    help=OURS.get(package, "install the package that has this module"),
                )
        yield from _program(view, env) if env.body.is_program else ()
    made = next(filter(is_made, all_sources(view.program)), None)
    if made is not None and _is_missing(made.name):
        yield finding(
            f"`{made.name}` needs the package reasoning-gym, which is not installed here, so its "
            "task and arguments are not checked",
            made.span,
            help=OURS[made.name],
        )


def _program(view: View, env: EnvironmentDecl) -> Iterator[Diagnostic]:
    """Find packages that the scripts of a program import and its interpreter lacks."""
    from forgedsl.lower.packages import lacking

    if view.folder is None or not view.shared.on_disk:
        return
    command = env.body.args["command"][0]
    scripts = [locate(each, view.folder) for each in env.body.scripts if each.endswith(".py")]
    present = [script for script in scripts if script.is_file()]  # the others were reported
    for script in present:
        missing = lacking(script, command)
        if missing:
            told = [INSTALL.search(each.read_text("utf-8", "replace")) for each in present]
            package = next((found[1] for found in told if found), "PACKAGE")
            yield finding(
                f"{command} lacks {', '.join(missing)}, which `{script.name}` of agent "
                f"`{env.name}` imports",
                env.body.span,
                help=f"{command} -m pip install {package}",
            )
            return


def _is_missing(module: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(module) is None
    except (ValueError, ImportError):
        return True
