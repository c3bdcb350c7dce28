"""`forgec lsp`: the language server, which editors start.

    forgec lsp             speak the Language Server Protocol over stdin and stdout

Needs the package pygls: `pip install "forgedsl[lsp]"`. docs/guide/editors.md has set-ups for
VS Code, Neovim, Emacs and Helix. Exit 0 when the editor leaves; 2 if the package is missing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from forgedsl.cli.parser import Parser, with_examples

if TYPE_CHECKING:
    from collections.abc import Sequence

INSTALL = 'pip install "forgedsl[lsp]"'


def parser() -> Parser:
    about = "Start the language server for editors."
    made = Parser("lsp", with_examples(about, __doc__), "", num_words=0)
    made.add_argument(
        "--stdio", action="store_true", help="the default; accepted because some editors pass it"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    parser().parse(arguments)
    try:
        import pygls  # noqa: F401
    except ImportError:
        print(f"forgec: the language server needs the package pygls:\n  {INSTALL}", file=sys.stderr)
        return 2
    from forgedsl.lsp.server import serve

    serve()
    return 0
