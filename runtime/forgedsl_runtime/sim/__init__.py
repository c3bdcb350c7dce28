"""Simulation (`forgec sim`): the real controller on simulated time, over services modelled by their
latencies.

Job + Latencies + faults --simulate--> Result
"""
