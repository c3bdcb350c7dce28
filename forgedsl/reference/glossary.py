"""Glossary of words that mean the same in all files, for `forgec explain WORD`.

A word is a kind, a kind of service, a keyword, a statement of a flow, a name in expressions, or a
setting, given by its full name or its end (`lr`, `optimizer`).
"""

from forgedsl import extensions
from forgedsl.operations.base import Operation
from forgedsl.records import replace
from forgedsl.reference import expressions, kinds
from forgedsl.reference.markdown import block, join
from forgedsl.reference.settings import constructors, settings_table
from forgedsl.schema.kinds import ALL_KINDS, KINDS, SERVICES

FLOW = {
    word: text.partition(";")[0] if "](" in text else text
    for word, text in kinds.STATEMENTS.items()
}
"""statements of the flow, without links, for the terminal"""
IN_LOSSES = {
    "minimize": "what a loss is: one scalar, from an aggregator such as `token_mean`",
    "report": "a scalar of a loss that becomes a column of metrics.jsonl; no gradient",
    "diff": "marks an input of a loss that has a gradient",
}
EXPRESSIONS = expressions.MEANINGS | expressions.FIELDS | expressions.AXES | IN_LOSSES


def word(what: str) -> str | None:
    """Return the meaning of a word as Markdown; None if there is no such word."""
    if what in ALL_KINDS:
        return kinds.entry(what)
    if what in SERVICES:
        return join([f"# {what}", f"{SERVICES[what].doc}.", settings_table(SERVICES[what])])
    if what in kinds.WORDS:
        shape, text = kinds.WORDS[what]
        return join([f"# {what}", f"{text}.", block(shape)])
    made = [text for text in constructors() if _named(text) == what.removeprefix("rl.")]
    if made:
        return join(text.replace("### ", "# ", 1) for text in made)
    for place, meanings in (("a flow", FLOW), ("expressions", EXPRESSIONS)):
        if what in meanings:
            return join([f"# {what}, in {place}", f"{meanings[what]}."])
    return _setting(what) or _statement(what)


def _statement(what: str) -> str | None:
    """A statement of a flow that an extension adds."""
    for unit in extensions.added("OPERATIONS", Operation):
        for form in unit.forms:
            if form.method == what:
                return join([f"# {what}, in a flow", f"`{form.shown or what}`: {form.doc}."])
    return None


def names() -> tuple[str, ...]:
    """Return the words that have an entry, without settings."""
    made = map(_named, constructors())
    return (*ALL_KINDS, *SERVICES, *kinds.WORDS, *FLOW, *EXPRESSIONS, *made)


def _named(text: str) -> str:
    """The name of a constructor, from its text."""
    return text.removeprefix("### ").removeprefix("rl.").partition("(")[0]


def _setting(what: str) -> str | None:
    """Return the settings that end in `what`, or are in the block of this name, for each kind."""
    parts = []
    for name, kind in {**KINDS, **SERVICES}.items():
        found = tuple(s for s in kind.settings if f".{what}." in f".{s.name}.")
        if found and not kind.single:
            parts += [f"# {what}, of {name}", settings_table(replace(kind, settings=found))]
    return join(parts) if parts else None
