"""How operations of a flow run: one module each, found through `registry`."""
