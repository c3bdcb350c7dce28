"""Syntax: bytes -> source text -> AST.

`read_source` checks and decodes a file, `parse` builds its tree while parsing (grammar/forge.lark)
and reports mistakes to a `Reporter`.
"""

from forgedsl.syntax.parser import parse, parse_value
from forgedsl.syntax.read import decode, read_source

__all__ = ["decode", "parse", "parse_value", "read_source"]
