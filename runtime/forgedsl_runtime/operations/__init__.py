"""Runtime side of the operations of a flow: one module each, found through `registry`."""
