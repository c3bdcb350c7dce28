"""What-if: recorded steps of a run under another file, without the models of the run."""
