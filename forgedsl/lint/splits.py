"""Parses slices of a dataset split, such as `train[:90%]`."""

SLICE = r"\[(\d*)(%?):(\d*)(%?)\]"
