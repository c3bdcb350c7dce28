"""The passes of the compiler, in order, with a verifier behind each.

    text -> tokens -> ast -> hir -> graph -> plan -> job

`compile_program(request)` runs them; `PASSES` is the table. A pass knows neither the other passes
nor the manager, which verifies, prints and times each product.
"""

from forgedsl.passes.manager import Compiled, PassRecord, Request, compile_program
from forgedsl.passes.table import PASSES, names

__all__ = ["PASSES", "Compiled", "PassRecord", "Request", "compile_program", "names"]
