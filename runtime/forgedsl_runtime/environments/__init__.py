"""Multi-turn environments: their processes, the driver of a trajectory, and its tokens.

driver (controller's process) --PoolRequest--> pool --> process (worker.py) --> one object per
   |  tokens: bridge.py         <--Reply------------------'                     trajectory
   '--> engine, one request a turn
"""
