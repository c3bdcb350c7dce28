"""Selection of findings: [tool.forgec.lint] of the nearest pyproject.toml, and the command line.

    select = ["ALL"]  ignore = ["L412"]        warnings and infos by code or prefix; the more
                                               specific wins; pedantic rules are off unless selected
    error = ["R508"]  warn = ["L405"]          sets the severity of findings; `warn` works for an
                                               error only if a comment could suppress it
    per-file-ignores = { "drafts/*" = ["N9"] } by glob of the path below the pyproject.toml

Errors cannot be ignored here. A comment with a reason can suppress one, if its rule allows that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.lint.registry import finding_of
from forgedsl.lint.suppress import is_suppressible
from forgedsl.project import ProjectError, project_of
from forgedsl.records import dataclass, field, replace

KEYS = ("select", "ignore", "error", "warn", "per-file-ignores")
FAMILIES = frozenset("SFPALRDTXN")


class ConfigError(Exception):
    """The configuration is invalid; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Selection of rules. Selectors are codes or prefixes of codes; per-file globs are relative to
    `root`."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    warn: tuple[str, ...] = ()
    per_file: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    root: Path | None = None
    extra: frozenset[str] = frozenset()
    """pedantic rules that are enabled without a selector (by --deep)"""

    def for_file(self, path: Path) -> Config:
        """Return this configuration with the `per-file-ignores` of one file applied."""
        if self.root is None or not self.per_file:
            return self
        try:
            name = path.resolve().relative_to(self.root).as_posix()
        except ValueError:
            return self
        more = [
            code for glob, codes in self.per_file.items() if fnmatch(name, glob) for code in codes
        ]
        return replace(self, ignore=(*self.ignore, *more), per_file={})

    def runs(self, code: str) -> bool:
        """True if a rule runs: errors always do, others if selected and not ignored."""
        return _is_error(code) or code in self.extra or self._selected(code)

    def applied(self, diagnostic: Diagnostic) -> Diagnostic | None:
        """Return a finding with its configured severity; None if it is ignored."""
        code, severity = diagnostic.code, diagnostic.severity
        if severity is not Severity.ERROR and not (code in self.extra or self._selected(code)):
            return None
        if _longest(self.error, code) >= 0:
            severity = Severity.ERROR
        elif _longest(self.warn, code) >= 0 and (
            severity is not Severity.ERROR or is_suppressible(code)
        ):
            severity = Severity.WARNING
        same = severity is diagnostic.severity
        return diagnostic if same else replace(diagnostic, severity=severity)

    def _selected(self, code: str) -> bool:
        if self.select is None:
            chosen = -1 if _is_pedantic(code) else 0
        else:
            chosen = _longest(self.select, code)
        return chosen >= 0 and chosen > _longest(self.ignore, code)


DEFAULT = Config()


def _is_error(code: str) -> bool:
    """True for a rule whose findings are errors."""
    found = finding_of(code)
    return found is not None and found.level in ("E", "D")


def _is_pedantic(code: str) -> bool:
    found = finding_of(code)
    return found is not None and found.pedantic


def _longest(selectors: Iterable[str], code: str) -> int:
    """Return the length of the longest selector that matches a code; 0 for ALL, -1 if none does."""
    lengths = [0 if s == "ALL" else len(s) for s in selectors if s == "ALL" or code.startswith(s)]
    return max(lengths, default=-1)


def load(path: Path) -> Config:
    """Read the configuration that applies to a file. Raises ConfigError."""
    try:
        project = project_of(path)
    except ProjectError as error:
        raise ConfigError(str(error)) from error
    if project is None or not (section := project.section.get("lint", {})):
        return DEFAULT
    if not isinstance(section, dict):
        raise ConfigError("[tool.forgec.lint] must be a table")
    return _config(section, project.path.parent)


def _config(section: dict[str, Any], root: Path) -> Config:
    unknown = sorted(section.keys() - set(KEYS))
    if unknown:
        raise ConfigError(f"[tool.forgec.lint] has no `{unknown[0]}`; it has {', '.join(KEYS)}")
    lists = {key: _codes(key, section[key]) for key in KEYS[:-1] if key in section}
    per_file = section.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise ConfigError("`per-file-ignores` must be a table of globs and lists of codes")
    return checked(
        Config(
            select=lists.get("select"),
            ignore=lists.get("ignore", ()),
            error=lists.get("error", ()),
            warn=lists.get("warn", ()),
            per_file={glob: _codes("per-file-ignores", codes) for glob, codes in per_file.items()},
            root=root,
        )
    )


def _codes(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"`{key}` must be a list of codes")
    return tuple(value)


def checked(config: Config) -> Config:
    """Check and return the configuration. Raises ConfigError if a selector has no meaning."""
    ignored = [*config.ignore, *(code for codes in config.per_file.values() for code in codes)]
    for selector in (*(config.select or ()), *ignored, *config.error, *config.warn):
        if selector != "ALL" and not (
            (selector[:1] in FAMILIES and selector[1:].isdigit()) or selector in FAMILIES
        ):
            raise ConfigError(f"`{selector}` is no code, no prefix of codes, and not ALL")
    for code in ignored:
        if _is_error(code):
            remedy = f"if the program is correct, write `# forge: allow[{code}] reason` there"
            if not is_suppressible(code):
                remedy = "it cannot be suppressed either"
            raise ConfigError(f"{code} is an error and cannot be ignored; {remedy}")
    for code in config.warn:
        if _is_error(code) and not is_suppressible(code):
            raise ConfigError(f"{code} is an error in every program and stays one")
    return config
