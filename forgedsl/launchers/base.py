"""Facts of a launcher: its settings, which hosts it reaches, what it submits.

How it starts hosts is `runtime/forgedsl_runtime/hosts/NAME.py`. To add one:
docs/design/launchers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forgedsl.records import dataclass
from forgedsl.settings import Parameter, Signature, Type


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Resources that a plan requests: hosts, GPUs of the fullest host, resources of a host from
    `cluster` (None: not set), and the seconds of notice before the end. `title`, `compiler`,
    `services` and `other` (a note that the program has another launcher) are comments. `command`
    runs in the allocation, `output` is its log file (default: the launcher's), and `path` is a
    folder to add to PATH, for programs such as `forgec`."""

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
    """Input file of a scheduler. `emit` is its name in `forgec build --emit`; `text` writes it from
    an allocation and the settings of the launcher (empty if the program has another launcher)."""

    emit: str
    file: str
    what: str
    text: Callable[[Allocation, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """One way to start processes.

    max_hosts    maximum number of hosts; None: unlimited
    one_machine  True if its hosts are parts of the machine that `forgec run` runs on
    allocation   environment variable that is set inside of an allocation, where jobs run directly
    manifest     input file of the scheduler
    submit       program with which `forgec run` submits the manifest; "": the user submits it
    """

    signature: Signature
    max_hosts: int | None = 1
    one_machine: bool = False
    allocation: str = ""
    manifest: Manifest | None = None
    submit: str = ""

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def splits(self) -> bool:
        """True if its hosts share this machine's cores, memory and GPUs."""
        return self.one_machine and self.max_hosts is None


def signature(name: str, doc: str, *params: Parameter, instead: str = "") -> Signature:
    """Return the call form: `name(...)`."""
    return Signature(name=name, params=params, doc=doc, instead=instead)


def keyword(name: str, type_: Type, default: object = None) -> Parameter:
    """Return a setting with a default."""
    return Parameter(name=name, type=type_, default=default, keyword=True)


def rendered(template: str, allocation: Allocation, **more: Any) -> str:
    """Render a template of this folder."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("forgedsl.launchers"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(
        title=allocation.title, compiler=allocation.compiler, name=allocation.name,
        hosts=allocation.hosts, gpus=allocation.gpus, services=allocation.services,
        other=allocation.other, **more,
    )  # fmt: skip


GIB = 2**30
