"""Simulation: latencies of a plan or a run, faults, and the result."""
