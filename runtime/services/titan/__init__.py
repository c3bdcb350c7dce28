"""Kind `titan` at run time: a torchtitan model, trained or frozen.

Its facts: forgedsl/services/titan.
"""
