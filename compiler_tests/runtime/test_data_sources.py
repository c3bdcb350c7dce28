"""Where rows come from: JSON lines, parquet, hub datasets from local folders, mixtures."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from forgedsl.errors import LaunchError
from forgedsl.lower import job
from forgedsl_runtime.data import sources
from forgedsl_runtime.data.sources import Source, Unreadable, open_source


def file_source(path: Path, kind: str = "jsonl") -> job.FileSource:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return job.FileSource(kind=kind, path=path.name, sha256=digest)


def opened(spec: job.DataSource, folder: Path, *, streaming: bool = False, shuffle=None) -> Source:
    return open_source(spec, shuffle=shuffle, streaming=streaming, job_dir=folder)


def values(source: Source, positions: range) -> list[int]:
    return [source.row_at(p)[1]["n"] for p in positions]


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n":1,"text":"a\xe2\x80\xa8b"}\r\n\n{"n":2}')
    source = opened(file_source(path), tmp_path)
    assert source.num_rows == 2
    assert source.row_at(0) == (0, {"n": 1, "text": "a\u2028b"})
    assert values(source, range(3)) == [1, 2, 1]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"n": [1, 2], "tags": [["a"], []]}), path)
    source = opened(file_source(path, "parquet"), tmp_path)
    assert source.num_rows == 2
    assert source.row_at(1) == (1, {"n": 2, "tags": []})


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'\xef\xbb\xbfn,text\r\n1,"a, b\nc"\r\n\r\n007,d\r\n3\r\n')
    source = opened(file_source(path, "csv"), tmp_path)
    assert source.num_rows == 3
    assert source.row_at(0) == (0, {"n": "1", "text": "a, b\nc"})
    assert source.row_at(1) == (1, {"n": "007", "text": "d"})
    assert source.row_at(2) == (2, Unreadable("the row has 1 value, but the header has 2 columns"))
    # lines of the file, where a row begins: the first takes two, and one is empty
    assert [source.place(row) for row in range(3)] == [f"rows.csv:{n}" for n in (2, 5, 6)]


def test_a_file_given_by_an_absolute_path_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n": 1}\n')
    spec = file_source(path)
    stored = f"inputs/{spec.sha256[:8]}-rows.jsonl"  # so that the job has no path of this machine
    (tmp_path / "inputs").mkdir()
    path.rename(tmp_path / stored)
    assert opened(spec.model_copy(update={"path": stored}), tmp_path).place(0) == "rows.jsonl:1"
    (tmp_path / stored).unlink()
    with pytest.raises(LaunchError, match=r"the data file rows\.jsonl is missing"):
        opened(spec.model_copy(update={"path": stored}), tmp_path)


def test_a_csv_file_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"n,n\n1,2\n")
    with pytest.raises(LaunchError, match=r"rows\.csv: the column `n` occurs twice"):
        opened(file_source(path, "csv"), tmp_path)


def test_a_json_list(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"n": 1},\n {"n": 2}, 3]')
    source = opened(file_source(path, "json"), tmp_path)
    assert values(source, range(2)) == [1, 2]
    assert source.row_at(2) == (2, Unreadable("a row must be a JSON object"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"rows": [1]}', r"holds no list; it has a list in `rows`, to extract it: jq '\.rows'"),
        ('{"n": 1}\n{"n": 2}\n', r"not JSON: .*`jsonl\(\.\.\.\)`"),
        ("3", "but the file holds no list"),
    ],
)
def test_json_that_is_no_list_is_refused(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(content)
    with pytest.raises(LaunchError, match=why):
        opened(file_source(path, "json"), tmp_path)


def test_a_folder_of_save_to_disk(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    from forgedsl.lower.paths import digest

    rows = Dataset.from_list([{"n": 1}, {"n": 2}])
    rows.save_to_disk(str(tmp_path / "one"))
    spec = job.FileSource(kind="disk", path="one", sha256=digest(tmp_path / "one"))
    assert values(opened(spec, tmp_path), range(3)) == [1, 2, 1]
    DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "two"))
    spec = job.FileSource(kind="disk", path="two", sha256=digest(tmp_path / "two"))
    with pytest.raises(
        LaunchError, match=r'has the splits train: name one, such as `disk\("two/train"\)`'
    ):
        opened(spec, tmp_path)
    spec = job.FileSource(kind="disk", path="one", sha256="0" * 64)
    with pytest.raises(LaunchError, match="one is not the folder the job was built with"):
        opened(spec, tmp_path)


def test_shipped_data_needs_no_folder(tmp_path: Path) -> None:
    import forgedsl.pipelines

    path = Path(forgedsl.pipelines.__file__).parent / "data" / "arithmetic.jsonl"
    spec = file_source(path).model_copy(update={"path": "forgedsl:data/arithmetic.jsonl"})
    assert opened(spec, tmp_path).num_rows == 9000


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"n":1}\n\n{"n":"\xf6"}\n', r"not UTF-8 (byte 0xf6); convert it"),
        (
            b"{\"n\":1}\n\n{'n': 2}\n",
            "the repr of a Python dict; write rows with `json",
        ),
        (b'{"n":1}\n\n{"n":\n', "not a line of JSON"),
        (b'{"n":1}\n\n\xff\xfe\n', "not a line of JSON"),
        (b'{"n":1}\n\n[1]\n', "a row must be a JSON object"),
    ],
)
def test_a_line_that_is_no_row_stands_for_itself(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    source = opened(file_source(path), tmp_path)
    row_id, row = source.row_at(1)
    assert isinstance(row, Unreadable)
    assert why in row.why
    assert source.place(row_id) == "rows.jsonl:3"


def test_a_line_of_many_megabytes_is_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LONGEST_ROW", 1 << 20)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n": "%s"}\n{"n": 1}\n' % (b"x" * (3 << 20)))
    (_, long), (_, row) = (opened(file_source(path), tmp_path).row_at(i) for i in range(2))
    assert (long.why, row) == ("the line has 3 MiB; the limit for a row is 1 MiB", {"n": 1})


def test_a_byte_order_mark_is_no_part_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 1, "m": 2}\n{"n": 1, "m": 2}\n')
    assert opened(file_source(path), tmp_path).row_at(0) == (0, {"n": 1, "m": 2})


def test_a_json_list_is_told_from_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(b'[\n {"n": 1},\n {"n": 2}\n]\n')
    with pytest.raises(
        LaunchError, match=r'rows\.json is one JSON list.*write `json\("rows\.json"\)`'
    ):
        opened(file_source(path), tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (gzip.compress(b'{"n":1}\n', mtime=0), r"is compressed: `gunzip -c rows\.jsonl"),
        (b"PAR1....PAR1", r'is a parquet file: write `parquet\("rows\.jsonl"\)`'),
        ('{"n":1}\n'.encode("utf-16"), "is UTF-16: `iconv -f UTF-16 -t UTF-8"),
        (b"question,answer\n1+1,2\n", r'looks like CSV: write `csv\("rows\.jsonl"\)`'),
        (b'{"n":1}\r{"n":2}\r', r"has lines that end with CR only: `tr '\\r' '\\n' < rows"),
    ],
)
def test_a_file_of_another_form_is_told_what_to_do(
    tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(LaunchError, match=why):
        opened(file_source(path), tmp_path)


def test_lines_of_lists_are_no_json_list(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"[1, 2]\n[3]\n")
    assert opened(file_source(path), tmp_path).row_at(0)[1] == Unreadable(
        "a row must be a JSON object"
    )


def test_a_folder_is_no_file_of_rows(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    spec = job.FileSource(kind="jsonl", path="rows", sha256="0")
    with pytest.raises(LaunchError, match=r"rows is a folder, but `jsonl` reads one file"):
        opened(spec, tmp_path)


def test_rows_of_a_file_above_are_named_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "inputs/up/up/rows.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"n":1}\n')
    spec = file_source(path).model_copy(update={"path": "inputs/up/up/rows.jsonl"})
    source = opened(spec, tmp_path)
    assert source.place(source.row_at(0)[0]) == "../../rows.jsonl:1"


def test_a_file_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n")
    with pytest.raises(
        LaunchError, match=r"rows\.jsonl has no rows: it is empty, and each row must"
    ):
        opened(file_source(path), tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "kind", "why"),
    [
        ("rows.csv", b"", "csv", r"rows\.csv has no rows: the first line must name the columns"),
        ("rows.csv", b"a,b\n", "csv", r"rows\.csv has no rows: the first line must name"),
        ("rows.csv", "a\n1\n".encode("utf-16"), "csv", r"byte 0xff.*`iconv -f UTF-16 -t UTF-8`"),
        ("rows.csv", b"a;b\n1;2\n", "csv", r"separated by `;`.*delimiter=';'.* < rows\.csv >"),
        ("rows.csv", b'"a";"b"\n"1";"2"\n', "csv", r"separated by `;`"),
        ("rows.tsv", b"a\tb\n1\t2\n", "csv", r"separated by `\\t`.*delimiter='\\t'"),
        ("rows.csv", b'{"n": 1}\n', "csv", r"not CSV: write `jsonl\(\"rows\.csv\"\)`"),
        ("rows.csv", b"a,b\n1,2\n", "parquet", r"not a parquet file: write `csv\(\"rows\.csv\"\)`"),
        ("rows.x", b'{"n": 1}\n', "parquet", r"not a parquet file: write `jsonl\("),
    ],
)
def test_a_file_that_another_source_reads_names_it(
    tmp_path: Path, name: str, content: bytes, kind: str, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LaunchError, match=why):
        opened(file_source(tmp_path / name, kind), tmp_path)


def test_a_header_with_a_comma_is_one_of_commas(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"n,a;b\n1,2;3\n")
    assert opened(file_source(path, "csv"), tmp_path).row_at(0)[1] == {"n": "1", "a;b": "2;3"}


def test_bad_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(LaunchError, match=r"rows\.parquet: not a parquet file"):
        opened(file_source(path, "parquet"), tmp_path)


def test_missing_and_changed_files(tmp_path: Path) -> None:
    spec = job.FileSource(kind="jsonl", path="rows.jsonl", sha256="0" * 64)
    with pytest.raises(LaunchError, match=r"the data file rows\.jsonl is missing"):
        opened(spec, tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"n":1}\n')
    with pytest.raises(LaunchError, match="is not the file the job was built with"):
        opened(spec, tmp_path)


def test_mixture_of_files(tmp_path: Path) -> None:
    for name, n in (("a.jsonl", 1), ("b.jsonl", 2)):
        (tmp_path / name).write_text(f'{{"n":{n}}}\n')
    parts = tuple(file_source(tmp_path / name) for name in ("a.jsonl", "b.jsonl"))
    source = opened(job.MixtureSource(sources=parts, weights=(0.5, 0.5)), tmp_path)
    assert source.num_rows == 2
    assert values(source, range(4)) == [1, 2, 1, 2]


README = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
---
"""


def dataset_folder(folder: Path) -> Path:
    """A folder laid out as a dataset repository of the hub, GSM8K's in small."""
    (folder / "main").mkdir(parents=True)
    (folder / "README.md").write_text(README)
    for split, numbers in (("train", [1, 2, 3, 4]), ("test", [9])):
        table = pa.table({"n": numbers})
        parquet.write_table(table, folder / "main" / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache on a host that reaches no hub; the folder of the cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "prepared")
    return tmp_path / "hub"


def test_hub_layout_beside_the_job(tmp_path: Path, offline: Path) -> None:
    dataset_folder(tmp_path / "inputs" / "gsm8k")
    spec = job.HfSource(id="inputs/gsm8k", config="main", split="test")
    assert values(opened(spec, tmp_path), range(1)) == [9]


def test_hub_cache_is_enough_when_offline(tmp_path: Path, offline: Path) -> None:
    repo = offline / "datasets--acme--sums"
    dataset_folder(repo / "snapshots" / "abc")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    spec = job.HfSource(id="acme/sums", config="main", split="train")
    source = opened(spec, tmp_path)
    assert (source.num_rows, values(source, range(4))) == (4, [1, 2, 3, 4])


def test_a_dataset_that_cannot_be_had_is_a_launch_error(tmp_path: Path, offline: Path) -> None:
    with pytest.raises(LaunchError, match=r'cannot load hf\("acme/none"\)'):
        opened(job.HfSource(id="acme/none", split="train"), tmp_path)


def test_a_hub_without_an_address_is_told_once_and_at_once(
    tmp_path: Path,
    offline: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr("urllib.request.getproxies", dict)
    asked = (
        r'cannot load hf\("acme/none"\): the hub cannot be reached \(hub\.invalid: .+\), and the'
    )
    with pytest.raises(LaunchError, match=asked):
        opened(job.HfSource(id="acme/none", split="train"), tmp_path)
    assert "Retrying" not in capfd.readouterr().err
    assert constants.HF_HUB_OFFLINE is False


def test_stream_repeats_and_resumes(tmp_path: Path, offline: Path) -> None:
    dataset_folder(tmp_path / "sums")
    spec = job.HfSource(id="sums", config="main", split="train")
    stream = opened(spec, tmp_path, streaming=True)
    assert stream.num_rows is None
    assert values(stream, range(6)) == [1, 2, 3, 4, 1, 2]
    assert stream.row_at(1)[1] == {"n": 2}


def test_shuffled_stream_is_another_order_every_epoch(tmp_path: Path, offline: Path) -> None:
    dataset_folder(tmp_path / "sums")
    spec = job.HfSource(id="sums", config="main", split="train")
    stream = opened(spec, tmp_path, streaming=True, shuffle=3)
    epochs = [tuple(values(stream, range(start, start + 4))) for start in range(0, 40, 4)]
    assert {tuple(sorted(epoch)) for epoch in epochs} == {(1, 2, 3, 4)}
    assert len(set(epochs)) > 1
    again = opened(spec, tmp_path, streaming=True, shuffle=3)
    assert values(again, range(17, 19)) == list((epochs[4] + epochs[5])[1:3])
