"""Text forms of HIR, graph and plan that read back as equal objects.

    print_ir(value, sources) -> text        read_ir(text) -> value        same(a, b) -> bool

    kind = "service", name = "trainer", settings = {procs = 4 <- file @29:15+1 at @29:3+5, ...}

Records are written as `hir.Decl(field = value, ...)` without fields that have their default; what
is referred to from several places has a name (`%service.trainer`) and a definition of its own.
Expressions stand in backticks as in a .forge file. `@35:10+8` is line, column and length; the line
starts that turn it into offsets, and the places inside expressions, follow at the end.
"""

from forgedsl.irtext.printer import print_ir
from forgedsl.irtext.reader import IrTextError, read_ir
from forgedsl.irtext.same import same

__all__ = ["IrTextError", "print_ir", "read_ir", "same"]
