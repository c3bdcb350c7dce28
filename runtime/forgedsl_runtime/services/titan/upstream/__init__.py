"""Adapter of torchtitan: the only code that uses it."""
