"""Recorded steps: completions with all values that the flow has computed for them."""
