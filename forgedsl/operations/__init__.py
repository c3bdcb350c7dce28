"""Operations of a flow: one module each, listed in `registry`."""
