"""Texts of `forgec explain` and `forgec doc`: pages of codes, origins of values, losses as
mathematics."""
