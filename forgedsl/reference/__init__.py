"""Reference documentation, generated from the tables and comments that the compiler reads.

    schema, explain pages, std/rl  ->  docs/reference/*.md     python -m forgedsl.docs
    a .forge file                  ->  its page                forgec doc FILE

`REFERENCES` maps the name of a page of docs/reference to what writes it. The page of the commands
is made from the commands themselves (cli/reference.py).
"""

import importlib
from collections.abc import Callable

REFERENCES = {
    "rules": "forgedsl.reference.rules",
    "kinds": "forgedsl.reference.kinds",
    "settings": "forgedsl.reference.settings",
    "families": "forgedsl.reference.families",
    "expressions": "forgedsl.reference.expressions",
    "std_rl": "forgedsl.reference.library",
}
"""name of the page -> module with a function `page() -> str`"""


def reference(name: str) -> str:
    """One page of docs/reference, as Markdown."""
    page: Callable[[], str] = importlib.import_module(REFERENCES[name]).page
    return page()
