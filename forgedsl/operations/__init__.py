"""Operations of a flow: one module of answers each, found through `registry`."""
