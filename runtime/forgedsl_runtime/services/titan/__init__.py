"""Kind `titan` at run time: a torchtitan model, trained or frozen.

Its declaration for the compiler is in forgedsl/services/titan.
"""
