"""`forgec fmt`: the canonical text of a .forge file.

`format_source(source, file)` prints a parsed file with its comments; `print_file(ast)` prints a
tree that has no text.
"""

from forgedsl.format.printer import format_source, print_file

__all__ = ["format_source", "print_file"]
