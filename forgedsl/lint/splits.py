"""Parses slices of a dataset split, such as `train[:90%]`."""

import re

SLICE = re.compile(r"\[(\d*)(%?):(\d*)(%?)\]")
