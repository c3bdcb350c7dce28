"""Kinds of services: one folder each, listed in `registry`."""
