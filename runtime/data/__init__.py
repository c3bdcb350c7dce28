"""Datasets of a job: rows of a source -> prompts, supervised samples or preference pairs.

    source --position--> row --generated functions--> messages --tokenizer--> Prompt | Sample | pair

Everything a reader gives out is a function of its cursor, a position in an endless stream of
shuffled epochs: a run that is resumed there continues with exactly the row that followed.
"""

from forgedsl.runtime.data.chat import ChatTokenizer
from forgedsl.runtime.data.reader import DatasetReader, open_dataset

__all__ = ["ChatTokenizer", "DatasetReader", "open_dataset"]
