"""Launchers: a module of facts each, listed in `registry`."""
