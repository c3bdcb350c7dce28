"""Multi-turn environments: their processes, the driver of a trajectory, and its tokens.

driver (controller's process) --Answer of a turn--> pool --> process (worker.py) --> one object
   |  tokens: bridge.py         <--Reply-----------------------'        per trajectory
   '--> engine, one request a turn
"""
