"""Launchers start the hosts of a run: one module each, found through `registry`."""
