"""Simulation (`forgec sim`): the real controller on simulated time, over services that take some.

Job + Latencies + faults --simulate--> Result
"""
