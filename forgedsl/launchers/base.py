"""Facts of a launcher: its settings, which hosts it reaches, what it submits.

How it starts hosts is `runtime/hosts/NAME.py`. To add one: docs/design/launchers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forgedsl.records import dataclass
from forgedsl.settings import Parameter, Signature, Type


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What a plan asks for: hosts, GPUs of the fullest of them, what `cluster` says of a host
    (None: nothing), and the seconds of notice before its end. `title`, `compiler`, `services` and
    `other` (that the program has another launcher) are for people. `command` runs in it, and
    `output` takes what that prints, if not as the launcher has it; `path` is where programs are
    that its set-up does not bring."""

    name: str
    title: str
    compiler: str
    services: tuple[str, ...]
    hosts: int
    gpus: int
    cpus: int | None
    memory: int | None
    grace: int
    command: str = ""
    output: str = ""
    path: str = ""
    other: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a scheduler takes: `emit` names it in `forgec build --emit`, `text` writes it from an
    allocation and the settings of the launcher (none where the program has another)."""

    emit: str
    file: str
    what: str
    text: Callable[[Allocation, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """One way to start processes.

    most         hosts that this version starts processes on; None: as many as the plan uses
    one_machine  its hosts are parts of the machine that `forgec run` runs on
    allocation   what the environment holds where the scheduler has started us: there a job runs
    manifest     what is submitted to the scheduler
    submit       the program that `forgec run` hands the manifest to; "": a user does
    """

    signature: Signature
    most: int | None = 1
    one_machine: bool = False
    allocation: str = ""
    manifest: Manifest | None = None
    submit: str = ""

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def splits(self) -> bool:
        """True if its hosts divide this machine's cores, memory and GPUs among them."""
        return self.one_machine and self.most is None


def signature(name: str, doc: str, *params: Parameter, instead: str = "") -> Signature:
    """Return the call form: `name(...)`."""
    return Signature(name=name, params=params, doc=doc, instead=instead)


def keyword(name: str, type_: Type, default: object = None) -> Parameter:
    """A setting that has a default."""
    return Parameter(name=name, type=type_, default=default, keyword=True)


def rendered(template: str, asked: Allocation, **more: Any) -> str:
    """A template of this folder, filled in."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("forgedsl.launchers"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(
        title=asked.title, compiler=asked.compiler, name=asked.name, hosts=asked.hosts,
        gpus=asked.gpus, services=asked.services, other=asked.other, **more,
    )  # fmt: skip


GIB = 2**30
