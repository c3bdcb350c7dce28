"""Programs that nobody has read, run so that they harm nothing, and judged from outside.

    choose() -> a level -> evaluate(code, steps) -> plain data -> judge(code, cases) -> [bool]

The verdict is never formed in the judged process: the calls of a case go in, their results come out
as data, and are compared here. Used by rewards, and by tools of environments. Imports no torch.
"""

from forgedsl.runtime.sandbox.cases import CaseError, judge
from forgedsl.runtime.sandbox.levels import LEVELS, MARK, choose, description
from forgedsl.runtime.sandbox.process import Answers, Limits, Opaque, SandboxError, evaluate

__all__ = [
    "LEVELS", "MARK", "Answers", "CaseError", "Limits", "Opaque", "SandboxError", "choose",
    "description", "evaluate", "judge",
]  # fmt: skip
