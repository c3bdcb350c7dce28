"""Launchers: one module of facts each, found through `registry`."""
