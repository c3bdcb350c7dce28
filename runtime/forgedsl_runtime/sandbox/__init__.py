"""Run untrusted programs in isolation, and judge their results outside of their process.

    choose()               ->  the level at which programs run
    evaluate(code, steps)  ->  plain data: the results of the steps
    judge(code, cases)     ->  [bool]: whether each case holds

The judged process never computes the verdict: it gets the calls of a case, returns their results as
data, and these are compared outside. Used by rewards, and by tools of environments. Imports no
torch.
"""

from forgedsl_runtime.sandbox.cases import CaseError, judge
from forgedsl_runtime.sandbox.levels import LEVELS, MARK, choose, description
from forgedsl_runtime.sandbox.process import Answers, Limits, Opaque, SandboxError, evaluate

__all__ = [
    "LEVELS", "MARK", "Answers", "CaseError", "Limits", "Opaque", "SandboxError", "choose",
    "description", "evaluate", "judge",
]  # fmt: skip
