"""Reference documentation out of the tables and comments that the compiler itself reads.

    schema, explain pages, commands, std/rl  ->  docs/reference/*.md     python -m forgedsl.docs
    a .forge file                            ->  its page                forgec doc FILE

`REFERENCES` maps the name of a page of docs/reference to what writes it.
"""

import importlib
from collections.abc import Callable

REFERENCES = {
    "rules": "forgedsl.docs.rules",
    "kinds": "forgedsl.docs.kinds",
    "settings": "forgedsl.docs.settings",
    "families": "forgedsl.docs.families",
    "expressions": "forgedsl.docs.expressions",
    "std_rl": "forgedsl.docs.library",
    "cli": "forgedsl.docs.commands",
}
"""name of the page -> module with a function `page() -> str`"""


def reference(name: str) -> str:
    """One page of docs/reference, as Markdown."""
    page: Callable[[], str] = importlib.import_module(REFERENCES[name]).page
    return page()
