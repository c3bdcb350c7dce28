"""Launcher `ssh`: machines that can be logged in to without a password."""

from __future__ import annotations

from forgedsl.launchers.base import Launcher, keyword, signature
from forgedsl.records import replace
from forgedsl.settings import STR, Parameter, Type

LAUNCHER = Launcher(
    signature=signature(
        "ssh",
        "machines that `ssh NAME` reaches without a password",
        Parameter(name="hosts", type=Type(base="list", item=STR)),
        keyword("python", replace(STR, optional=True)),
        keyword("options", Type(base="list", item=STR, optional=True)),
    ),
    max_hosts=None,
)
