"""Effects of Python rewards, read from the source text: nothing is imported or run.

    pure < random < gpu        io < net < exec        a declared effect covers those below it

`uses` follows a function into other functions of its file, and includes top-level statements, which
run when a worker imports the file. Names are resolved through imports: after
`import subprocess as sp`, `sp.run` is `subprocess.run`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache

from forgedsl.records import dataclass

COVERS = {
    "exec": frozenset({"exec", "net", "io"}),
    "net": frozenset({"net", "io"}),
    "io": frozenset({"io"}),
    "gpu": frozenset({"gpu", "random"}),
    "random": frozenset({"random"}),
}
BY_PREFIX = {
    "exec": (
        "subprocess", "multiprocessing", "pty", "runpy", "os.system", "os.popen", "os.execv",
        "os.execvp", "os.spawnv", "os.posix_spawn", "os.fork", "asyncio.create_subprocess_exec",
        "asyncio.create_subprocess_shell", "forgedsl_runtime.sandbox",
    ),
    "net": (
        "socket", "requests", "httpx", "aiohttp", "urllib.request", "urllib3", "http.client",
        "websockets", "smtplib", "ftplib", "openai", "anthropic", "huggingface_hub", "boto3",
    ),
    "io": ("os.remove", "os.mkdir", "os.makedirs", "os.listdir", "shutil", "tempfile", "sqlite3"),
    "random": ("random", "secrets", "uuid.uuid1", "uuid.uuid4", "numpy.random", "os.urandom"),
    "gpu": ("torch.cuda", "cupy"),
}  # fmt: skip
BUILTINS = {"exec": "exec", "eval": "exec", "open": "io"}
METHODS = {
    "read_text": "io", "write_text": "io", "read_bytes": "io", "write_bytes": "io", "cuda": "gpu",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A call in a Python file that has an effect; `line` and `column` are those of Python's
    `ast`."""

    effect: str
    name: str
    line: int
    column: int
    end_column: int
    keywords: tuple[str | None, ...] = ()
    """names of its keyword arguments; None for `**`"""
    timeout: float | None = None
    """its timeout in seconds, if it is a literal number"""


def covered(declared: list[str]) -> frozenset[str]:
    """Return the effects that a declaration includes."""
    return frozenset[str]().union(*(COVERS[name] for name in declared))


def uses(module: ast.Module, function: str) -> tuple[Use, ...]:
    """Return the calls with effects in a function of a module, and those of importing the
    module."""
    roots = reached(module, function)
    found = [use for root in roots for use in _of(root, _names_of(module, root))]
    return tuple(sorted(found, key=lambda use: (use.line, use.column)))


def reached(module: ast.Module, function: str) -> list[ast.AST]:
    """Yield the top-level statements of a file, a function or class, and the definitions it
    names."""
    defined = {node.name: node for node in module.body if isinstance(node, _DEFINITIONS)}
    roots: list[ast.AST] = [n for n in module.body if not isinstance(n, _DEFINITIONS)]
    pending = [function]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in defined and name not in seen:
            seen.add(name)
            roots.append(defined[name])
            pending += [n.id for n in nodes_of(defined[name]) if isinstance(n, ast.Name)]
    return roots


def names_in(module: ast.Module, root: ast.AST) -> Callable[[ast.AST], str]:
    """Return a function that gives an expression inside `root` its full name: `os.environ.get` for
    `o.environ.get` after `import os as o`; "" if it is no dotted name."""
    scope = _names_of(module, root)

    def full(node: ast.AST) -> str:
        head, dot, rest = _dotted(node).partition(".")
        return scope.get(head, head) + dot + rest

    return full


@lru_cache(maxsize=1024)  # many questions are asked about the same definitions
def nodes_of(root: ast.AST) -> tuple[ast.AST, ...]:
    """Return the nodes of a tree that is not changed any more, in the order of `ast.walk`."""
    found = [root]
    for node in found:  # it grows
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
    return tuple(found)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _names_of(module: ast.Module, root: ast.AST) -> dict[str, str]:
    """Return the imported names that hold inside `root`, which is a top-level statement of a file
    or lies in one."""
    top = _names_at_import(module)
    return {**top, **imports_of(root)} if isinstance(root, _DEFINITIONS) else top


@lru_cache(maxsize=256)  # the same for all rewards, views and rules
def _names_at_import(module: ast.Module) -> dict[str, str]:
    return imports_of(*(n for n in module.body if not isinstance(n, _DEFINITIONS)))


def imports_of(*roots: ast.AST) -> dict[str, str]:
    """Return the local names of imported modules and functions. A name may mean another module in
    each body."""
    names: dict[str, str] = {}
    for node in (node for root in roots for node in nodes_of(root)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Assign) and (loaded := _loaded(node.value)):
            names |= {each.id: loaded for each in node.targets if isinstance(each, ast.Name)}
    return names


def _loaded(value: ast.expr) -> str:
    """Return the module that `importlib.import_module("requests")` or `__import__("requests")`
    loads."""
    if not isinstance(value, ast.Call) or not value.args:
        return ""
    name, first = _dotted(value.func).rpartition(".")[2], value.args[0]
    known = name in ("import_module", "__import__") and isinstance(first, ast.Constant)
    return str(first.value) if known and isinstance(first, ast.Constant) else ""


def _of(root: ast.AST, scope: dict[str, str]) -> Iterator[Use]:
    for node in nodes_of(root):
        if not isinstance(node, ast.Call):
            continue
        name = _dotted(node.func)
        effect = _effect(name, scope) if name else METHODS.get(getattr(node.func, "attr", ""))
        if effect is not None:
            head, _, rest = name.partition(".")
            shown = scope.get(head, head) + (f".{rest}" if rest else "")
            yield Use(
                effect=effect,
                name=shown or getattr(node.func, "attr", ""),
                line=node.lineno,
                column=node.func.col_offset,
                end_column=node.func.end_col_offset or node.func.col_offset + 1,
                keywords=tuple(keyword.arg for keyword in node.keywords),
                timeout=_seconds(node),
            )


def _seconds(call: ast.Call) -> float | None:
    given = (word.value for word in call.keywords if word.arg == "timeout")
    found = [v.value for v in given if isinstance(v, ast.Constant)]
    return float(found[0]) if found and isinstance(found[0], int | float) else None


def _dotted(node: ast.AST) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _effect(name: str, scope: dict[str, str]) -> str | None:
    head, _, rest = name.partition(".")
    if head not in scope:
        return METHODS.get(name.rpartition(".")[2]) if rest else BUILTINS.get(name)
    full = scope[head] + (f".{rest}" if rest else "")
    for effect, prefixes in BY_PREFIX.items():
        if any(full == p or full.startswith(f"{p}.") for p in prefixes):
            return effect
    return METHODS.get(full.rpartition(".")[2])
