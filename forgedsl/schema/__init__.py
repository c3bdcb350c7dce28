"""Tables of everything that can be declared: kinds, settings, constructors, built-in functions."""

from forgedsl.schema.kinds import ALL_KINDS, FUNCTION_KINDS, KINDS, SERVICES, SINGLETONS
from forgedsl.settings import Derived, Kind, Required, Setting, Signature, Type

__all__ = [
    "ALL_KINDS", "FUNCTION_KINDS", "KINDS", "SERVICES", "SINGLETONS", "Derived", "Kind",
    "Required", "Setting", "Signature", "Type",
]  # fmt: skip
