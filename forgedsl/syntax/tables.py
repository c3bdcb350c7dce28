"""The grammar as plain tables, for the parser of correct files (fast_parser.py).

    grammar/forge.lark --Lark--> states and rules --marshal--> the user's cache folder

Lark itself is loaded only where the cache has no tables for this grammar, and for files with
mistakes. `states[s]` maps a terminal to the next state (>= 0) or to the rule to reduce by (~rule);
`gotos[s]` maps a rule's name to the next state.
"""

from __future__ import annotations

import functools
import sys
import zlib
from pathlib import Path
from typing import Any

from forgedsl.records import dataclass, fields
from forgedsl.syntax import cache

FORMAT = 1  # version of the tables below; part of the name of their cache entry
OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "start": ["start", "value"],
    "maybe_placeholders": True,
    "keep_all_tokens": True,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A grammar rule. `callback` is the builder's method. If it is None, an inlined rule returns
    the list of its children, and any other rule its only child. `parts` has one entry for each
    child: its index; True if it is a list to splice in; the number of None values to insert before
    it. `absent` is the number of None values to append. If `parts` is None, the children are
    used as they are."""

    origin: str
    size: int
    callback: str | None
    is_single: bool  # a single child is the value of the rule
    parts: tuple[tuple[int, bool, int], ...] | None
    absent: int


@dataclass(frozen=True, slots=True)
class Tables:
    states: list[dict[str, int]]
    gotos: list[dict[str, int]]
    rules: list[Rule]
    starts: dict[str, int]
    ends: dict[str, int]
    keywords: frozenset[str]


def grammar_text() -> str:
    """The text of grammar/forge.lark."""
    import forgedsl.grammar

    return Path(forgedsl.grammar.__path__[0], "forge.lark").read_text("utf-8")


@functools.cache
def load() -> Tables:
    """Return the tables, from the cache if possible."""
    text = grammar_text()
    stamp = f"{FORMAT} {sys.version_info[:2]} {sorted(OPTIONS.items())}\n{text}".encode()
    name = f"tables-{zlib.crc32(stamp):08x}{len(text):x}.marshal"
    found = cache.load_plain(name)
    if found is None:
        found = _plain(_build(text))
        cache.save_plain(name, found)
    states, gotos, rules, starts, ends, keywords = found
    return Tables(states, gotos, [Rule(*r) for r in rules], starts, ends, frozenset(keywords))


def _plain(tables: Tables) -> tuple[Any, ...]:
    names = [each.name for each in fields(Rule)]
    rules = [tuple(getattr(rule, name) for name in names) for rule in tables.rules]
    return tables.states, tables.gotos, rules, tables.starts, tables.ends, sorted(tables.keywords)


def _build(text: str) -> Tables:
    """Build the tables from Lark's."""
    import lark
    from lark.lexer import PatternStr
    from lark.parsers.lalr_analysis import Shift

    made: Any = lark.Lark(text, **OPTIONS)
    table = made.parser.parser._parse_table
    order = list(table.states)
    number = {state: i for i, state in enumerate(order)}
    rules: list[Any] = []
    seen: dict[Any, int] = {}
    states: list[dict[str, int]] = []
    gotos: list[dict[str, int]] = []
    for state in order:
        terminals: dict[str, int] = {}
        nonterminals: dict[str, int] = {}
        for key, (action, argument) in table.states[state].items():
            symbol = str(key)
            if action is not Shift:
                if argument not in seen:
                    seen[argument] = len(rules)
                    rules.append(argument)
                terminals[symbol] = ~seen[argument]
            elif symbol.isupper() or symbol == "_NL":
                terminals[symbol] = number[argument]
            else:
                nonterminals[symbol] = number[argument]
        states.append(terminals)
        gotos.append(nonterminals)
    return Tables(
        states=states,
        gotos=gotos,
        rules=[_rule(rule) for rule in rules],
        starts={str(name): number[state] for name, state in table.start_states.items()},
        ends={str(name): number[state] for name, state in table.end_states.items()},
        keywords=frozenset(
            str(t.pattern.value)
            for t in made.terminals
            if isinstance(t.pattern, PatternStr) and t.pattern.value.isalpha()
        ),
    )


def _rule(rule: Any) -> Rule:
    """Return a rule with the way in which Lark arranges the children of its node."""
    placeholders = rule.options.empty_indices
    size = len(rule.expansion)
    before = [0] * (size + 1)
    if placeholders:
        runs = "".join(str(int(is_absent)) for is_absent in placeholders).split("0")
        before = [len(run) for run in runs]
    spliced = [not s.is_term and s.name.startswith("_") for s in rule.expansion]
    plain = not placeholders and not any(spliced)
    name = str(rule.alias or rule.origin.name)
    return Rule(
        origin=str(rule.origin.name),
        size=size,
        callback=None if name.startswith("_") else name,
        is_single=bool(rule.options.expand1 and not rule.alias),
        parts=None if plain else tuple((i, spliced[i], before[i]) for i in range(size)),
        absent=before[size],
    )
