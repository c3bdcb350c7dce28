"""What-if: recompute recorded steps of a run under another .forge file. Only `--train` loads a
model."""
