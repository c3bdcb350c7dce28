"""Row sources: endless streams of rows, addressed by position.

    file | hub | mixture --open_source--> Source.row_at(position) -> (row id, row)

Position p of a source with N rows is row `permutation(p // N)[p % N]`. A mixture compares each
source's number of rows so far with its weight, and takes the next row from the source that is
furthest behind. So a mixture needs no random numbers.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import socket
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from forgedsl import surface
from forgedsl.errors import LaunchError
from forgedsl.lower import job
from forgedsl.lower.paths import digest as digest_of
from forgedsl_runtime.data.made_rows import MadeRows
from forgedsl_runtime.data.tables import csv_rows, disk_rows, json_rows
from forgedsl_runtime.models import NotAvailableOffline, resolve_path


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that cannot be read, such as a line that is no JSON object; `why` is the reason."""

    why: str


Row = Mapping[str, Any] | Unreadable
LONGEST_ROW = 32 << 20
"""largest line in bytes: tokenizing more would exhaust the host's memory"""
SHUFFLE_BUFFER = 10_000
"""number of rows in the shuffle buffer of a streamed source"""


class Source(Protocol):
    """An endless stream of rows."""

    num_rows: int | None
    """rows of an epoch; None for a stream of unknown length"""

    def row_at(self, position: int) -> tuple[int, Row]:
        """Return the row at a position of the stream, and its id."""

    def place(self, row_id: int) -> str:
        """Return the place of a row: `data/train.jsonl:17`."""


class Table:
    """Rows with random access."""

    def __init__(self, rows: Sequence[Row], shuffle: int | None, name: str = "") -> None:
        self.rows = rows
        self.name = name
        self.num_rows: int | None = len(rows)
        self.shuffle = shuffle
        self._epoch = -1
        self._order: Sequence[int] = range(len(rows))

    def row_at(self, position: int) -> tuple[int, Row]:
        epoch, place = divmod(position, len(self.rows))
        if self.shuffle is not None and epoch != self._epoch:
            order = list(range(len(self.rows)))
            random.Random(f"{self.shuffle}/{epoch}").shuffle(order)
            self._epoch, self._order = epoch, order
        index = self._order[place]
        return index, self.rows[index]

    def place(self, row_id: int) -> str:
        if isinstance(self.rows, _JsonlRows | _CsvRows):
            return f"{self.name}:{self.rows.lines[row_id]}"
        return _numbered(self.name, row_id)


class Mixture:
    """Rows of several sources in proportion to their weights."""

    def __init__(self, sources: Sequence[Source], weights: Sequence[float]) -> None:
        self.sources = sources
        self.weights = [weight / sum(weights) for weight in weights]
        sizes = [source.num_rows for source in sources]
        self.num_rows = None if None in sizes else sum(size or 0 for size in sizes)
        self._taken = [0] * len(sources)

    def row_at(self, position: int) -> tuple[int, Row]:
        if position < sum(self._taken):
            self._taken = [0] * len(self.sources)
        for p in range(sum(self._taken), position):
            self._taken[self._turn(p)] += 1
        turn = self._turn(position)
        row_id, row = self.sources[turn].row_at(self._taken[turn])
        self._taken[turn] += 1
        return row_id * len(self.sources) + turn, row

    def place(self, row_id: int) -> str:
        inner, turn = divmod(row_id, len(self.sources))
        return self.sources[turn].place(inner)

    def differing_columns(self) -> str:
        """Return the columns of each source as text if they differ; "" for streams, where they are
        unknown."""
        if self.num_rows is None:
            return ""
        firsts = [(source.place(0), source.row_at(0)[1]) for source in self.sources]
        columns = {place.rsplit(":", 1)[0].removesuffix(" row 0"): sorted(row)
                   for place, row in firsts if not isinstance(row, Unreadable)}  # fmt: skip
        if len(set(map(tuple, columns.values()))) < 2:
            return ""
        shown = "; ".join(f"{name} has {', '.join(has)}" for name, has in columns.items())
        remedy = "`first(row.NAME, row.OTHER)` reads whichever of the two a row has"
        return f"the sources have different columns: {shown}; {remedy}"

    def _turn(self, position: int) -> int:
        behind = [w * (position + 1) - n for w, n in zip(self.weights, self._taken, strict=True)]
        return behind.index(max(behind))


class Stream:
    """Rows of a hub dataset that are streamed, not downloaded as a whole; shuffled within a
    buffer."""

    def __init__(self, rows: Any, shuffle: int | None, name: str) -> None:
        self.num_rows: int | None = None
        self.name = name
        self._rows = (
            rows if shuffle is None else rows.shuffle(seed=shuffle, buffer_size=SHUFFLE_BUFFER)
        )
        self._restart()

    def row_at(self, position: int) -> tuple[int, Row]:
        if position < self._position:
            self._restart()
        while True:
            row = next(self._iterator, None)
            if row is None:
                self._next_epoch()
                continue
            self._position += 1
            if self._position > position:
                return position, row

    def place(self, row_id: int) -> str:
        return _numbered(self.name, row_id)

    def _restart(self) -> None:
        self._position, self._epoch, self._started = 0, -1, -1
        self._next_epoch()

    def _next_epoch(self) -> None:
        if self._started == self._position:
            raise LaunchError("a streamed dataset has no rows")
        self._started = self._position
        self._epoch += 1
        self._rows.set_epoch(self._epoch)
        self._iterator: Iterator[Row] = iter(self._rows)


def open_source(
    spec: job.DataSource, *, shuffle: int | None, streaming: bool, job_dir: Path,
    offline: bool = False,
) -> Source:  # fmt: skip
    """Open a declared source. `offline` forbids downloads.

    Raises:
        LaunchError: the data is missing, unreadable, empty, or differs from the data of the job.
    """
    if isinstance(spec, job.MixtureSource):
        open_ = partial(
            open_source, shuffle=shuffle, streaming=streaming, job_dir=job_dir, offline=offline
        )
        parts = [open_(part) for part in spec.sources]
        return Mixture(parts, spec.weights)
    if isinstance(spec, job.HfSource):
        rows = _hub_rows(spec, streaming, job_dir, offline)
        if streaming:
            return Stream(rows, shuffle, spec.id)
        name = spec.id
    elif isinstance(spec, job.ReasoningGymSource):
        rows, name = MadeRows(spec), spec.task
    else:
        rows, name = _file_rows(spec, job_dir), _declared_name(spec)
    if len(rows) == 0:
        raise LaunchError(f"{name} has no rows{_rows_label(spec)}")
    return Table(rows, shuffle, name)


ROW_FORMATS = {
    "csv": ": the first line must name the columns, and each line after it is a row",
    "jsonl": ": it is empty, and each row must be a line with a JSON object",
    "json": ": it is an empty list",
}


def _rows_label(spec: job.DataSource) -> str:
    return ROW_FORMATS.get(spec.kind, "")


def _file_rows(spec: job.FileSource, job_dir: Path) -> Sequence[Row]:
    path, name = resolve_path(spec.path, job_dir), _declared_name(spec)
    if spec.kind == "disk":
        return _disk_rows(spec, path, name)
    if path.is_dir():
        raise LaunchError(f"{name} is a folder, but `{spec.kind}` reads one file; for several "
                          "files write `mixture([...], weights = [...])`")  # fmt: skip
    if not path.is_file():
        raise NotAvailableOffline(f"the data file {name} is missing")
    content = path.read_bytes()
    _check_digest(hashlib.sha256(content).hexdigest(), spec, f"{name} is not the file")
    match spec.kind:
        case "parquet":
            return _ParquetRows(path, name, _format_of(content, path))
        case "csv":
            if (form := _format_of(content, path)) in ("parquet", "json", "jsonl"):
                raise LaunchError(f'{name}: not CSV: write `{form}("{name}")`')
            return _CsvRows(csv_rows(content, name))
        case "json":
            return _Rows(json_rows(content, name))
    if other := _other_format_help(content, name):
        raise LaunchError(f"{name} {other}")
    return _JsonlRows(content)


def _format_of(content: bytes, path: Path) -> str:
    """Return the name of the source for a file (such as `jsonl`), by its first bytes or its suffix;
    "" if unknown."""
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:4]
    if start == b"PAR1":
        return "parquet"
    if start[:1] in (b"{", b"["):
        return "jsonl" if start[:1] == b"{" else "json"
    return path.suffix[1:] if path.suffix in (".csv", ".jsonl", ".json") else ""


def _disk_rows(spec: job.FileSource, path: Path, name: str) -> Sequence[Row]:
    if not path.exists():
        raise NotAvailableOffline(f"the data folder {name} is missing")
    _check_digest(digest_of(path), spec, f"{name} is not the folder")
    return disk_rows(path, name)


def _check_digest(digest: str, spec: job.FileSource, what: str) -> None:
    if digest != spec.sha256:
        raise LaunchError(
            f"{what} the job was built with (sha256 {digest[:12]}, expected {spec.sha256[:12]}); "
            "restore it, build the job again, or accept the new data with `"
            + surface.call("run --resume RUN --allow data", 'result.resume(allow="data")')
            + "`"
        )


def _other_format_help(content: bytes, name: str) -> str:
    """Return what kind of file this is, if not JSON lines, and how to convert it; else ""."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    starts = ((b"\x1f\x8b", f"is compressed: `gunzip -c {name} > rows.jsonl`"),
              (b"\x28\xb5\x2f\xfd", f"is compressed: `zstd -dc {name} > rows.jsonl`"),
              (b"PK\x03\x04", f"is an archive: `unzip {name}`"),
              (b"PAR1", f'is a parquet file: write `parquet("{name}")`'),
              *((bom, f"is UTF-16: `iconv -f UTF-16 -t UTF-8 {name} > rows.jsonl`")
                for bom in (b"\xff\xfe", b"\xfe\xff")))  # fmt: skip
    for start, said in starts:
        if content.startswith(start):
            return said
    first, _, rest = content.strip().partition(b"\n")
    if content[:64].strip()[:1] + content[-64:].strip()[-1:] == b"[]" and not (
        rest and isinstance(_json(first), list)
    ):
        reads = "is one JSON list, but `jsonl` reads one object per line"
        return f'{reads}: write `json("{name}")`'
    if not rest and b"\r" in first.strip():
        return f"has lines that end with CR only: `tr '\\r' '\\n' < {name} > rows.jsonl`"
    columns = first.count(b",")
    if (
        columns
        and first.strip()[:1] not in b"{["
        and rest.partition(b"\n")[0].count(b",") >= columns
    ):
        return f'looks like CSV: write `csv("{name}")`'
    return ""


def _declared_name(spec: job.FileSource) -> str:
    """Return the name of an input file as written in the .forge file. A job stores `../x` as
    `inputs/up/x`; return `../x`. It stores `/data/x` as `inputs/SHA-x`; return `x`."""
    if spec.path == "inputs":
        return "."
    parts = spec.path.removeprefix("inputs/").split("/")
    climbs = next((i for i, part in enumerate(parts) if part != "up"), 0)
    mark = f"{spec.sha256[:8]}-" if spec.sha256 else ""
    return "/".join([".."] * climbs + parts[climbs:]).removeprefix(mark)


def _numbered(name: str, row_id: int) -> str:
    return f"{name} row {row_id}".strip()


class _JsonlRows(Sequence[Row]):
    """Rows of a JSON lines file, decoded on access; `lines` holds their line numbers."""

    def __init__(self, content: bytes) -> None:
        whole = [(n, line) for n, line in enumerate(content.split(b"\n"), 1) if line.strip()]
        self.lines = [number for number, _ in whole]
        self._rows = [line for _, line in whole]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        line = self._rows[index]
        if len(line) > LONGEST_ROW:
            most = f"the limit for a row is {LONGEST_ROW >> 20} MiB"
            return Unreadable(f"the line has {len(line) >> 20} MiB; {most}")
        return _json_row(line)


def _json(line: bytes) -> Any:
    """Return the value of a line of JSON, or `Unreadable` with the reason."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        said = (
            f"not UTF-8 (byte 0x{line[error.start]:02x}); convert it, for example with `iconv "
            "-f latin1 -t UTF-8`"
        )
        return Unreadable(f"not a line of JSON: {said}")
    except ValueError as error:
        python = re.match(rb"\s*\{\s*'", line)
        said = (
            ": it is the repr of a Python dict; write rows with `json.dumps(row)`"
            if python
            else f": {error}"
        )
        return Unreadable(f"not a line of JSON{said}")


def _json_row(line: bytes) -> Row:
    row = _json(line)
    return row if isinstance(row, dict | Unreadable) else Unreadable("a row must be a JSON object")


class _Rows(Sequence[Row]):
    """Rows in memory; unusable ones are stored as the text of the reason."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[index]
        if isinstance(row, dict):
            return row
        return Unreadable(row if isinstance(row, str) else "a row must be a JSON object")


class _CsvRows(_Rows):
    """Rows of a CSV file; `lines` holds the numbers of the lines at which they begin."""

    def __init__(self, rows: Sequence[tuple[int, Any]]) -> None:
        super().__init__([row for _, row in rows])
        self.lines = [line for line, _ in rows]


class _ParquetRows(Sequence[Row]):
    """Rows of a parquet file, decoded on access."""

    def __init__(self, path: Path, name: str, form: str) -> None:
        import pyarrow
        from pyarrow import parquet

        try:
            self.table = parquet.read_table(path)
        except pyarrow.ArrowInvalid as error:
            why = str(error).replace(str(path), name)
            if form and form != "parquet":
                why = f'write `{form}("{name}")`'
            raise LaunchError(f"{name}: not a parquet file: {why}") from error

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: Any) -> Any:
        return self.table.slice(index, 1).to_pylist()[0]


def _hub_rows(spec: job.HfSource, streaming: bool, job_dir: Path, offline: bool) -> Any:
    """Load a hub dataset; `id` may also name a folder in hub layout beside the job."""
    try:
        from datasets import load_dataset
        from huggingface_hub import constants
    except ImportError as error:
        raise NotAvailableOffline(f'hf("{spec.id}") needs the package `datasets`') from error
    where, revision = spec.id, spec.revision
    if (job_dir / spec.id).is_dir():
        where, revision = str(job_dir / spec.id), None
    cut_off = "" if where != spec.id else _unreachable(constants.ENDPOINT)
    if where == spec.id and (offline or cut_off or constants.HF_HUB_OFFLINE):
        snapshot = _local_snapshot(spec)
        if snapshot is None and offline:
            raise NotAvailableOffline(
                f'hf("{spec.id}") is not in the local cache of the Hugging Face hub'
            )
        where, revision = (where, revision) if snapshot is None else (snapshot, None)
    try:
        with _without_hub() if cut_off else nullcontext():
            return load_dataset(
                where, spec.config, split=spec.split or "train", revision=revision,
                streaming=streaming,
            )  # fmt: skip
    except (OSError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        if cut_off:
            why = f"the hub cannot be reached ({cut_off}), and the local cache does not have it"
        raise LaunchError(f'cannot load hf("{spec.id}"): {why}') from error


def _unreachable(endpoint: str) -> str:
    """Return why the host name of the hub cannot be resolved, or "". Without this check, a request
    would be retried for half a minute."""
    host = urlsplit(endpoint).hostname or endpoint
    if urllib.request.getproxies():  # the proxy looks the name up
        return ""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return f"{host}: {error.strerror or error}"
    return ""


@contextmanager
def _without_hub() -> Iterator[None]:
    """Let `datasets` look in its local cache alone."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _local_snapshot(spec: job.HfSource) -> str | None:
    """Return the folder of the dataset in the hub cache, or None. `datasets` itself finds only its
    own prepared files there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return str(
            snapshot_download(
                spec.id, repo_type="dataset", revision=spec.revision, local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise LaunchError(
            f'hf("{spec.id}") is not a valid dataset name of the Hugging Face hub: {error}'
        ) from error
