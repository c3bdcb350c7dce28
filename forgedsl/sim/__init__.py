"""Discrete-event simulation of a job: what its run would be like, from latencies alone."""
