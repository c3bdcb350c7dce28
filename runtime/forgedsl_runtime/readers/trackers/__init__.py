"""Tracking services that rows of metrics are sent to: one module each, listed in registry.py.

job.logging.NAME --Tracker.open--> a sink, or why there is none
"""
