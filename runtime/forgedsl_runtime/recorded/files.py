"""Files of recorded steps: one Parquet file for each step, compressed with zstd."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
AS_JSON = ("messages", "target", "columns", "versions", "rewards", "turn_rewards", "kept")
"""columns whose values are JSON"""
FOLDER = "recorded"
HIDDEN = ".partial"


def path_of(run_dir: Path, step: int) -> Path:
    return run_dir / FOLDER / f"step-{step:06}.parquet"


def steps_in(run_dir: Path) -> dict[int, Path]:
    """Return the files of a run by step, in order."""
    found = sorted((run_dir / FOLDER).glob("step-*.parquet"))
    return {int(path.stem.removeprefix("step-")): path for path in found}


def partial_files(run_dir: Path) -> list[Path]:
    """Return files that a killed run has not finished."""
    return list((run_dir / FOLDER).glob(f"*{HIDDEN}"))


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write a file whole or not at all.

    Raises:
        OSError: there is no room, or the folder is gone.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = {name: None for row in rows for name in row}
    schema = pa.schema([(name, _type(name)) for name in names])
    table = pa.Table.from_pylist([*rows], schema=schema)
    texts = [field.name for field in schema if field.type == pa.string()]
    path.parent.mkdir(exist_ok=True)
    hidden = path.with_suffix(HIDDEN)
    try:
        # dictionary encoding helps only if values repeat, and log-probs do not
        pq.write_table(table, hidden, compression="zstd", use_dictionary=texts)
        hidden.replace(path)
    except OSError:
        hidden.unlink(missing_ok=True)
        raise


def read(path: Path) -> list[Row]:
    """Return the rows of a step. Columns that a row does not have are None."""
    import pyarrow.parquet as pq

    # read_table would import pandas, which takes half a second; a step is too small for threads
    found: list[Row] = pq.ParquetFile(path).read(use_threads=False).to_pylist()
    return found


def _type(name: str) -> Any:
    import pyarrow as pa

    head, _, part = name.partition("/")
    if part:
        of = {"tokens": pa.list_(pa.float32()), "logprob": pa.list_(pa.float32()),
              "place": pa.int32()}  # fmt: skip
        return of.get(head, pa.float64())
    if name in AS_JSON:
        return pa.string()
    types = {
        "unit": pa.int64(), "local": pa.int64(), "group": pa.int64(), "row": pa.int64(),
        "cell": pa.int32(), "age": pa.int32(), "cursor": pa.int64(), "sibling": pa.int32(),
        "prompt_ids": pa.list_(pa.int32()),
        "token_ids": pa.list_(pa.int32()), "behavior": pa.list_(pa.float32()),
        "mask": pa.list_(pa.bool_()), "truncated": pa.bool_(), "version_min": pa.int32(),
        "version_max": pa.int32(), "turns": pa.int32(), "num_observed": pa.int32(),
        "row_starts": pa.list_(pa.int32()), "fixed": pa.float64(), "others": pa.list_(pa.string()),
    }  # fmt: skip
    return types.get(name, pa.string())
