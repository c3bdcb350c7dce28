"""Weight transports: one module each, found through `registry`."""
