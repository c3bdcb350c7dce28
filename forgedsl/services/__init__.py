"""Kinds of services: one module of facts each, found through `registry`."""
