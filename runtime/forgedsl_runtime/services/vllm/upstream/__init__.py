"""Adapter of vLLM: the only code that uses it."""
