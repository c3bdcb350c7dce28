"""Datasets of a job: rows of a source -> prompts, supervised samples or preference pairs.

    source --position--> row --generated functions--> messages --tokenizer--> Prompt | Sample | pair

Every item of a reader depends only on its cursor, a position in an endless stream of shuffled
epochs. A run resumed there continues with exactly the next row.
"""

from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.data.reader import DatasetReader, open_dataset

__all__ = ["ChatTokenizer", "DatasetReader", "open_dataset"]
