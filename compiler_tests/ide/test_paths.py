"""Completion of paths: what is beside the file, and what ships, at each place that takes a path."""

from pathlib import Path

import pytest

from forgedsl.ide import complete
from forgedsl.ide.workspace import Workspace
from forgedsl.lint.engine import lint_source
from forgedsl.shipped import locate
from forgedsl.source import SourceFile

CURSOR = "|"
FILES = (
    "rewards/grading.py", "rewards/words.txt", "parts.forge", "own.py", "data/a.jsonl",
    "data/b.csv", "data/deep/c.jsonl", "model/config.json", ".hidden/x.jsonl", "data/.hidden.jsonl",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path / "project"


def offered(folder, text):
    path, workspace = folder / "a.forge", Workspace()
    offset = text.index(CURSOR)
    workspace.open(path, text.replace(CURSOR, "", 1))
    return complete.complete(workspace.document(path), offset)


def labels(folder, text):
    return {item.label for item in offered(folder, text)}


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ('import python "|', {"data/", "model/", "own.py", "rewards/"}),
        ('import python "rewards/|', {"rewards/grading.py"}),
        ('import python "./ow|', {"./data/", "./model/", "./own.py", "./rewards/"}),
        ('import "|', {"data/", "model/", "parts", "rewards/", "std/rl"}),
        ('dataset d { source = jsonl("da|', {"data/", "model/", "rewards/"}),
        ('dataset d { source = jsonl("data/|', {"data/a.jsonl", "data/deep/"}),
        ('dataset d { source = jsonl(path = "data/deep/|', {"data/deep/c.jsonl"}),
        ('dataset d { source = csv("data/|', {"data/b.csv", "data/deep/"}),
        ('dataset d { source = mixture([jsonl("data/|', {"data/a.jsonl", "data/deep/"}),
        ('dataset d { source = disk("|', {"data", "model", "rewards"}),
        ('model m { source = local("|', {"data", "model", "rewards"}),
        ('model m { tokenizer = local("data/|', {"data/deep"}),
        ('dataset d { system = file("rewards/|', {"rewards/grading.py", "rewards/words.txt"}),
        ('reward r = own.f { files = ["rewards/|', {"rewards/grading.py", "rewards/words.txt"}),
        ('reward r = own.f { files = ["own.py", "data/de|', {"data/a.jsonl", "data/b.csv",
                                                             "data/deep/"}),
        ('environment e = program(["python3", "rewards/|', {"rewards/grading.py",
                                                            "rewards/words.txt"}),
        ('environment e = program(["a"], files = ["rewards/|', {"rewards/grading.py",
                                                                "rewards/words.txt"}),
        ('model m { source = local("..|', {"../"}),
        ('model m { source = local("../|', {"../project"}),
        ('model m { source = local("none/|', set()),
        ('model m { source = hf("|', set()),
        ('run { name = "|', set()),
        ('environment e = program(["a"], parts = ["|', set()),
    ],
)  # fmt: skip
def test_files_and_folders_beside_the_file_are_offered(folder, text, own):
    found = {each for each in labels(folder, text) if not each.startswith("forgedsl:")}
    assert found == own


@pytest.mark.parametrize(
    ("text", "some", "none"),
    [
        ('dataset d { source = jsonl("|', "forgedsl:data/arithmetic.jsonl", "parquet"),
        ('dataset d { source = parquet("|', "forgedsl:data/code_demos.parquet", "jsonl"),
        ('model m { source = local("|', "forgedsl:models/tiny_math", "README"),
        ('model m { source = random(1), tokenizer = local("|', "forgedsl:tokenizers/arithmetic",
         "README"),
        ('dataset d { source = jsonl("forgedsl:data/|', "forgedsl:data/arithmetic.jsonl",
         "parquet"),
        ('dataset d { system = file("forgedsl:|', "forgedsl:prompts/", "../"),
        ('dataset d { system = file("|', "forgedsl:", "../"),
    ],
)  # fmt: skip
def test_what_ships_is_offered(folder, text, some, none):
    found = labels(folder, text)
    assert some in found
    assert not [each for each in found if each.startswith("forgedsl:") and none in each]
    for each in found:
        assert locate(each, folder).exists(), each


def test_a_path_replaces_what_is_typed(folder):
    text = 'dataset d { source = jsonl("data/a|'
    (item,) = [each for each in offered(folder, text) if each.label == "data/a.jsonl"]
    written = text.replace(CURSOR, "")
    done = f'{written[: item.span.start]}{item.insert}{written[item.span.end :]}")'
    assert done == 'dataset d { source = jsonl("data/a.jsonl")'


def test_an_import_that_is_offered_is_found(folder):
    for text in ('import "|" as x\n', 'import python "|" as x\n'):
        for name in labels(folder, text):
            if name.endswith("/"):
                continue
            source = SourceFile(str(folder / "a.forge"), text.replace(CURSOR, name))
            found = lint_source(source, folder).diagnostics
            assert "F115" not in {finding.code for finding in found}, name


def test_a_huge_folder_is_read_in_part(folder):
    from forgedsl.ide.paths import MOST

    for number in range(MOST + 50):
        (folder / "data" / f"part{number}.jsonl").write_text("")
    found = labels(folder, 'dataset d { source = jsonl("data/|')
    assert 0 < len([each for each in found if each.startswith("data/")]) <= MOST


PIPELINES = sorted(Path(__file__).parents[2].glob("pipelines/*.forge"))
STARTS = ("jsonl(", "parquet(", "csv(", "local(", "file(", "import ", "import python ")


def missed(path):
    """Paths of a pipeline that are not offered with their last part gone."""
    text = path.read_text()
    for start in STARTS:
        place = text.find(f'{start}"')
        while place >= 0:
            begin = place + len(start) + 1
            written = text[begin : text.index('"', begin)]
            cut = begin + written.rfind("/") + 1
            workspace = Workspace()
            workspace.open(path, f'{text[:cut]}"{text[begin + len(written) + 1 :]}')
            found = complete.complete(workspace.document(path), cut)
            whole = {item.label for item in found}
            if written not in whole and (path.parent / written).exists():
                yield f"{path.name}: {start}{written}"
            place = text.find(f'{start}"', begin)


def test_paths_of_pipelines_are_offered():
    assert [each for path in PIPELINES[::5] for each in missed(path)] == []


@pytest.mark.deep
def test_every_path_of_every_pipeline_is_offered():
    assert [each for path in PIPELINES for each in missed(path)] == []
