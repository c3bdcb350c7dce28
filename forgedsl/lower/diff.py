"""Compares two jobs: their differences, and what each can change.

    Job + Job -> Change (class, setting, before, after, place)

    numerics        what is computed: the loss curve may change
    placement       where and how fast it runs; results differ by the order of sums at most
    observability   what is measured, saved and reported, and when to give up
    cosmetic        text only: names, comments, the order of declarations

The class of a setting is declared in its schema. Generated code is compared by meaning, so that a
comment or a moved line is cosmetic. Fields that follow from others are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from forgedsl.lower.followed import followed_in
from forgedsl.lower.formula import meanings
from forgedsl.lower.job import Job
from forgedsl.operations.registry import declarations
from forgedsl.records import dataclass
from forgedsl.schema import KINDS, SERVICES
from forgedsl.types.flow import Role

CLASSES = ("numerics", "placement", "observability", "cosmetic")
MISSING = "-"

SETTINGS = {
    "activation_checkpoint": "memory.activation_checkpoint",
    "offload": "memory.offload",
    "keep_weights": "memory.keep_weights",
    "gpu_memory": "engine.gpu_memory",
    "prefix_caching": "engine.prefix_caching",
    "cuda_graphs": "engine.cuda_graphs",
    "max_running": "engine.max_running",
    "kv_dtype": "engine.kv_dtype",
    "weight_dtype": "engine.weight_dtype",
    "mesh.name": "mesh_name",
}
"""fields of a service in a job -> the setting they come from; others keep their name"""

NODE_CLASS = {"slots": "placement", "transport": "placement", "timeout": "observability"}
NODE_TEXT = ("id", "origin", "name")
GENERATED = (
    "prompt", "target", "chat", "chosen", "rejected", "level", "weight", "observe", "function",
)  # fmt: skip
"""fields that name a function of the job's program"""
SCHEDULE_DERIVED = ("prompts",)
SOURCE_NAMES = ("path",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference. `path` is the setting's path for a user; `where` its declaration in the newer
    job."""

    impact: str
    path: str
    before: str
    after: str
    where: str = ""


def compare(old: Job, new: Job) -> tuple[Change, ...]:
    """Return all differences, sorted by class and path."""
    found = [
        *_plain(old, new),
        *_services(old, new),
        *_nodes(old, new),
        *_losses(old, new),
        *_program(old, new),
    ]
    effect = min((CLASSES.index(c.impact) for c in found), default=CLASSES.index("cosmetic"))
    found += _params(old, new, CLASSES[effect])
    found += _text(old, new)
    return tuple(sorted(found, key=lambda c: (CLASSES.index(c.impact), c.path)))


# ---- sections of a job that map onto settings


def _plain(old: Job, new: Job) -> Iterator[Change]:
    one, other = followed_in((_dump(old), _dump(new)))
    follows = one.keys() & other.keys()
    for section, impact, kind in (
        ("models", "numerics", "model"),
        ("datasets", "numerics", "dataset"),
        ("rewards", "numerics", "reward"),
        ("rubrics", "numerics", "rubric"),
        ("environments", "numerics", "environment"),
        *((each.section, "numerics", kind) for kind, each in declarations().items()),
        ("evals", "observability", "eval"),
    ):
        before, after = getattr(old, section), getattr(new, section)
        for name in sorted(before.keys() | after.keys()):
            yield from _declared(old, new, section, name, impact, kind, follows)
    for name, impact in (
        ("schedule", "numerics"),
        ("checkpoint", "observability"),
        ("logging", "observability"),
        ("proofs", "observability"),
        ("launcher", "placement"),
    ):
        pair = _dump(getattr(old, name)), _dump(getattr(new, name))
        for path, before, after in _leaves(*pair):
            if path in SCHEDULE_DERIVED and name == "schedule":
                continue
            yield _change(new, _setting_class(name, path, impact), name, path, before, after)
    for path, before, after in _leaves(_dump_list(old.colocate), _dump_list(new.colocate)):
        yield _change(new, "placement", "colocate", path, before, after)
    if old.seed != new.seed:
        yield _change(new, "numerics", "run", "seed", old.seed, new.seed)
    if old.name != new.name:
        yield _change(new, "observability", "run", "name", old.name, new.name)


def _declared(
    old: Job, new: Job, section: str, name: str, impact: str, kind: str, follows: set[str]
) -> Iterator[Change]:
    before, after = getattr(old, section).get(name), getattr(new, section).get(name)
    if section == "datasets" and name in _eval_rows(old) | _eval_rows(new):
        impact = "observability"
    if before is None or after is None:
        words = ("declared" if before is not None else MISSING), (
            "declared" if after is not None else MISSING
        )  # fmt: skip
        yield Change(impact=impact, path=f"{kind} {name}", before=words[0], after=words[1],
                     where=_where(new, name))  # fmt: skip
        return
    bodies = functions(old.program), functions(new.program)
    for path, one, other in _leaves(_dump(before), _dump(after)):
        if f"{section}.{name}.{path}" in follows:
            continue  # the setting that it follows from is reported
        if path.rpartition(".")[2] in SOURCE_NAMES and _same_content(before, after):
            yield _change(new, "cosmetic", name, path, one, other)
        elif not _names_function(path, one, other, bodies):
            declared = impact if impact == "observability" else None
            found = declared or _setting_class(kind, path, impact)
            yield _change(new, found, name, path, one, other)


def _eval_rows(job: Job) -> set[str]:
    """Return the names of the datasets that evals read."""
    return {found.dataset for found in job.evals.values()}


def _same_content(before: Any, after: Any) -> bool:
    """True if two declarations read the same bytes, even under different names."""
    hashes = [
        getattr(part.source if hasattr(part, "source") else part, "sha256", None)
        for part in (before, after)
    ]
    return hashes[0] is not None and hashes[0] == hashes[1]


def _names_function(
    path: str, before: Any, after: Any, bodies: tuple[dict[str, str], dict[str, str]]
) -> bool:
    """True for fields that only name a generated function: its body is compared instead. A function
    in Python or of the standard library has no body in the job, so its name is compared."""
    if path not in GENERATED or before not in bodies[0] or after not in bodies[1]:
        return False
    return before == after or bodies[0][before] == bodies[1][after]


def _setting_class(kind: str, path: str, default: str) -> str:
    schema = KINDS.get(kind)
    setting = schema.setting(path) if schema is not None else None
    return setting.impact if setting is not None else default


def _services(old: Job, new: Job) -> Iterator[Change]:
    for name in sorted(old.services.keys() | new.services.keys()):
        before, after = old.services.get(name), new.services.get(name)
        if before is None or after is None:
            words = ["declared" if s is not None else MISSING for s in (before, after)]
            yield Change(impact="placement", path=f"service {name}", before=words[0],
                         after=words[1], where=_where(new, name))  # fmt: skip
            continue
        changed = [*_leaves(_dump(before), _dump(after))]
        sizes = [c for c in changed if c[0].startswith("mesh.") and ".places" not in c[0]]
        for path, one, other in changed:
            if ".places" in f".{path}" and (sizes or path != "mesh.places.0.host"):
                continue  # follows from sizes; a changed placement is reported once
            setting = SETTINGS.get(path, path.removeprefix("mesh."))
            yield _change(new, _service_class(after.kind, path, setting), name, setting, one, other)


def _service_class(kind: str, path: str, setting: str) -> str:
    """Return the class of a setting; for an added or removed block (`lora`), the strictest of its
    settings. Fields without a setting depend on the flow or the model, and are numerics."""
    if path.startswith("mesh."):
        return "placement"
    schema = SERVICES[kind]
    named = f"engine.{setting}" if setting.startswith("extra") else setting
    found = schema.setting(named)
    inner = [s.impact for s in schema.settings if s.name.startswith(f"{named}.")]
    classes = [found.impact] if found is not None else inner
    return min(classes, key=CLASSES.index, default="numerics")


def _nodes(old: Job, new: Job) -> Iterator[Change]:
    before = {node.name: node for node in old.nodes}
    after = {node.name: node for node in new.nodes}
    bodies = functions(old.program), functions(new.program)
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            words = [f"{n.target}.{n.op}" if n is not None else MISSING for n in (one, other)]
            where = other.origin if other is not None else ""
            yield Change(impact="numerics", path=f"flow {name}", before=words[0], after=words[1],
                         where=where)  # fmt: skip
            continue
        for path, left, right in _leaves(_dump(one), _dump(other)):
            if path in NODE_TEXT:
                continue
            called = path == "weight" or (path == "target" and Role.COMPUTES in one.roles)
            same = bodies[0].get(str(left), MISSING) == bodies[1].get(str(right))
            if called and same:
                continue  # calls are compared by their generated functions
            impact = NODE_CLASS.get(path, "numerics")
            yield Change(impact=impact, path=f"flow {name}.{path}", before=_shown(left),
                         after=_shown(right), where=other.origin)  # fmt: skip


# ---- generated code, compared by meaning


def _losses(old: Job, new: Job) -> Iterator[Change]:
    for name in sorted(old.losses.keys() | new.losses.keys()):
        one, other = old.losses.get(name), new.losses.get(name)
        if one is None or other is None:
            words = ["declared" if loss is not None else MISSING for loss in (one, other)]
            yield Change(impact="numerics", path=f"loss {name}", before=words[0], after=words[1],
                         where=_where(new, name))  # fmt: skip
            continue
        before, after = meanings(one.tree), meanings(other.tree)
        for part in sorted(before.keys() | after.keys()):
            left, right = before.get(part, MISSING), after.get(part, MISSING)
            if left != right:
                impact = "numerics" if part in ("loss", "fields") else "observability"
                path = f"loss {name}" if part == "loss" else f"loss {name}.{part}"
                yield Change(impact=impact, path=path, before=left, after=right,
                             where=_where(new, name))  # fmt: skip


def _program(old: Job, new: Job) -> Iterator[Change]:
    before, after = functions(old.program), functions(new.program)
    for name in sorted(before.keys() | after.keys()):
        left, right = before.get(name, MISSING), after.get(name, MISSING)
        if left == right:
            continue
        kind, _, rest = name.partition("_")
        written = {n.replace(".", "_"): n for n in new.origins}
        start = next((n for n in sorted(written, key=len, reverse=True)
                      if rest == n or rest.startswith(f"{n}_")), rest)  # fmt: skip
        target = written.get(start, rest)
        column = rest.removeprefix(start).removeprefix("_")
        path = f"{target}.{column}" if column else f"{kind} {target}"
        yield Change(impact="numerics", path=path, before=left, after=right,
                     where=_where(new, target))  # fmt: skip


def functions(program: str) -> dict[str, str]:
    """Return the functions of a program module: name -> body without comments and docstring."""
    found = {}
    for node in ast.parse(program).body:
        if isinstance(node, ast.FunctionDef):
            body = node.body
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                body = body[1:]
            lines = [ast.unparse(statement) for statement in body]
            written = "; ".join(line.removeprefix("return ") for line in lines)
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            given = ", ".join(ast.unparse(each) for each in defaults)
            found[node.name] = f"{written} (with {given})" if given else written
    return found


def _params(old: Job, new: Job, impact: str) -> Iterator[Change]:
    """Yield changed params, in the strictest class of their effects; cosmetic without any
    effect."""
    for name in sorted(old.params.keys() | new.params.keys()):
        left, right = old.params.get(name, MISSING), new.params.get(name, MISSING)
        if left != right:
            yield Change(impact=impact, path=f"param {name}", before=_shown(left),
                         after=_shown(right), where=_where(new, name))  # fmt: skip


def _text(old: Job, new: Job) -> Iterator[Change]:
    """Return the cosmetic changes: profile, compiler version, spans of declarations."""
    for field in ("profile", "compiler"):
        left, right = getattr(old, field), getattr(new, field)
        if left != right:
            yield _change(new, "cosmetic", field, "", left, right)
    moved = [n for n in old.origins.keys() & new.origins.keys() if old.origins[n] != new.origins[n]]
    if moved:
        count = f"{len(moved)} declaration{'s' if len(moved) > 1 else ''} moved"
        yield Change(impact="cosmetic", path="text", before=MISSING, after=count)


# ---- parts


def _dump(spec: Any) -> dict[str, Any]:
    return spec.model_dump(mode="json")  # type: ignore[no-any-return]


def _dump_list(groups: tuple[tuple[str, ...], ...]) -> dict[str, Any]:
    return {"": [", ".join(group) for group in groups]}


def _leaves(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted path, before, after) for every leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            inner = f"{path}.{key}" if path else str(key)
            yield from _leaves(old.get(key), new.get(key), inner)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _leaves(one, other, f"{path}.{index}")
    elif old != new:
        yield path, old, new


def _change(new: Job, impact: str, name: str, path: str, before: Any, after: Any) -> Change:
    return Change(
        impact=impact,
        path=f"{name}.{path}" if path else name,
        before=_shown(before),
        after=_shown(after),
        where=_where(new, name),
    )


def _where(job: Job, name: str) -> str:
    """Return the span of the declaration that a path starts with. Names from modules contain
    dots."""
    parts = name.split(".")
    heads = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((job.origins[head] for head in heads if head in job.origins), "")


def _shown(value: Any) -> str:
    """Return a value as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        parts = [f"{k}={_shown(v)}" for k, v in value.items() if v is not None and k != "kind"]
        return f"{value.get('kind', '')}({', '.join(parts)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
