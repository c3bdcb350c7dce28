"""D608 unpinned-revision: the hub may serve other weights or rows under this name tomorrow.

    model policy { source = hf("Qwen/Qwen3-1.7B") }                              # fires
    model policy { source = hf("Qwen/Qwen3-1.7B", revision = "70d244c") }        # silent

Without a revision, the same file can give different results. Write the revision, or pin all of them
in a lock beside the file: `forgec lock x.forge` writes x.lock, and `forgec run x.forge --locked`
enforces it. A forge.lock beside the file counts too. Pedantic: on with `--select D608` or `--deep`.
"""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "I", pedantic=True)


def check(view: View) -> Findings:
    locks = ("forge.lock", PurePath(view.program.file).with_suffix(".lock").name)
    if view.folder is not None and any((view.folder / name).is_file() for name in locks):
        return
    program = view.program
    for decl in (*program.models.values(), *program.datasets.values()):
        for name in ("source", "tokenizer"):
            setting = decl.settings.get(name)
            for source in _hub(setting.value if setting else None):
                if source.args.get("revision") is None:
                    yield finding(
                        f'`hf("{source.args["id"]}")` names no revision',
                        source.span,
                        help='`revision = "..."`, or `forgec lock` for all of them',
                    )


def _hub(value: Any) -> Iterator[Constructor]:
    if isinstance(value, Constructor):
        if value.name == "hf" and "id" in value.args:
            yield value
        for item in value.args.get("sources", ()):
            yield from _hub(item)
