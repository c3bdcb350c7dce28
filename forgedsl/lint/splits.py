"""Parts of a split of a dataset: `train[:90%]`."""

import re

SLICE = re.compile(r"\[(\d*)(%?):(\d*)(%?)\]")
