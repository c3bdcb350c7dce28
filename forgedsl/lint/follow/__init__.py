"""Follows values through the Python of a program, without running it."""
