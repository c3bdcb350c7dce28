"""An advantage or filter of the flow as a function of lists of numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forgedsl.notebook import page
from forgedsl.python.arguments import numbers
from forgedsl.python.pages import PipelineError
from forgedsl.python.speaking import all_speak_python

if TYPE_CHECKING:
    from forgedsl.ir.program import Function


@all_speak_python
class FunctionOfLists:
    """A function of the file, called with one list of numbers for each parameter: a number for each
    completion of a group, or a list of numbers for each token. Made by `pipeline.function(name)`.
    """

    def __init__(
        self,
        name: str,
        found: Callable[..., Any],
        call: Callable[[Callable[..., Any], dict[str, Any]], Any],
        declared: Function,
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = declared.doc
        self.__signature__ = inspect.signature(found)
        self._found, self._call, self._declared = found, call, declared

    def __call__(self, *values: Any, **named: Any) -> Any:
        signature, name = self.__signature__, self.__name__
        try:
            given = signature.bind(*values, **named).arguments
        except TypeError as error:
            wanted = ", ".join(signature.parameters)
            raise PipelineError(f"{name}({wanted}): {error}") from None
        checked = {each: numbers(name, each, value) for each, value in given.items()}
        return self._call(self._found, checked)

    @property
    def declaration(self) -> str:
        """The first line of its declaration: `advantage group_norm(r: [G] f32) -> [G] f32`."""
        from forgedsl.format.expressions import Expressions
        from forgedsl.format.notes import Notes

        printer, declared = Expressions(Notes(None)), self._declared
        fields = ", ".join(f"{each.name}: {printer.type(each.type)}" for each in declared.fields)
        result = "" if declared.result is None else f" -> {printer.type(declared.result)}"
        return f"{declared.kind} {self.__name__}({fields}){result}"

    def __repr__(self) -> str:
        return f"<{self.declaration}>"

    def _repr_html_(self) -> str:
        from forgedsl.explain.losses import page as explained

        _, _, formula = explained(self._declared).partition("\n\n")
        return page(self.declaration, self._declared.doc, text=formula)
