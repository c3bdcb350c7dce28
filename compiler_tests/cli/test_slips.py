"""Slips on the command line: each is said at its word, in terms of what was meant."""

import re
from pathlib import Path

import pytest

from forgedsl import api
from forgedsl.cli.main import main
from forgedsl.diagnostics import Reporter
from forgedsl.explain.provenance import suggestions
from forgedsl.mistakes.other_tools import EQUIVALENTS
from forgedsl.mistakes.suggest import nearest
from forgedsl.schema import KINDS, SERVICES
from forgedsl.schema.kinds import SYNC
from forgedsl.syntax.read import read_source

GRPO = Path(__file__).parents[2] / "pipelines/grpo_math.forge"


def said(override: str) -> tuple[str, str, str]:
    """Code, message and help of the one diagnostic an override gives."""
    (found,) = api.load(GRPO, profile="none", overrides=[override]).reporter
    return found.code, found.message, found.help


def test_a_word_where_a_number_is_wanted() -> None:
    assert said("trainer.procs=abc") == (
        "F109",
        "`procs` must be an integer or `auto`, not `abc`",
        "",
    )


def test_a_word_for_a_parameter_that_is_a_number() -> None:
    assert said("group=abc") == ("F109", "parameter `group` must be an integer, not `abc`", "")


@pytest.mark.parametrize(
    ("override", "code", "help_text"),
    [
        ("lr=1e-5", "F101", "did you mean `trainer.optimizer.lr` or `reference.optimizer.lr`?"),
        ("steps=10", "F101", "did you mean `schedule.steps` or `logging.record.steps`?"),
        ("profle=cpu", "F101", "did you mean `--profile`?"),
        ("trainer.procs:4", "F121", "did you mean `trainer.procs=4`?"),
        ("schedule.starve_timeout=20m", "F109", "write `20min`"),
        ("trainer.optimizer.lr=1e400", "S019", ""),
        ("s/4/2/", "F121", "write `--set NAME.SETTING=VALUE`"),
        ("trainer.procs=4,generator.replicas=2", "F109", "give one setting per `--set`"),
        ("logging.console=False", "F109", "write `false`"),
        ("grp=4", "F101", "did you mean `group`?"),
        (
            "sums.optimizer.decay=none",
            "F101",
            "did you mean `trainer.optimizer.decay` or `reference.optimizer.decay`?",
        ),
        ("gsm8k.source=x.jsonl", "F101", 'write `jsonl("x.jsonl")`'),
    ],
)
def test_what_was_meant_is_said(override: str, code: str, help_text: str) -> None:
    found = said(override)
    assert (found[0], found[2]) == (code, help_text)


def test_what_is_typed_behind_a_command_has_no_fix() -> None:
    (found,) = api.load(GRPO, profile="none", overrides=["trainer.proc=2"]).reporter
    assert (found.help, found.fix) == ("did you mean `procs`?", None)


def test_a_parameter_may_be_given_another() -> None:
    assert list(api.load(GRPO, profile="none", overrides=["max_prompt=group"]).reporter) == []


def test_a_name_of_another_library() -> None:
    code, _, help_text = said("trainer.learning_rate=1e-5")
    assert (code, help_text) == ("F103", "here it is `optimizer.lr` of the trainer")


@pytest.mark.parametrize(
    ("text", "help_text"),
    [
        ("std/rl as rl", '`import "std/rl" as rl`'),
        ("std/rl.forge as rl", '`import "std/rl" as rl`'),
        ("own/grading.py", '`import python "own/grading.py" as grading`'),
        ("grading", '`import python "grading.py" as grading`, or `import "grading" as grading` of'),
    ],
)
def test_an_import_without_quotes(text: str, help_text: str) -> None:
    (found,) = api.load_text(f"forge 1\nimport {text}\n").reporter.diagnostics
    assert found.help.startswith(help_text)


def known_words() -> set[str]:
    kinds = (*KINDS.values(), *SERVICES.values(), SYNC)
    words = {setting.name for kind in kinds for setting in kind.settings}
    words |= {f"{kind.name}.{setting.name}" for kind in kinds for setting in kind.settings}
    for form in KINDS["launcher"].settings[0].type.ctors.values():
        words |= {form.name, *(param.name for param in form.params)}
    return words | {"n", "clip_low", "clip_high", "entropy_coef", "parallel.tp"}


PLAIN = [ours for ours in EQUIVALENTS.values() if re.match(r"`[a-z_.]+`", ours)]


@pytest.mark.parametrize("ours", sorted(set(PLAIN)))
def test_what_a_habit_leads_to_exists(ours: str) -> None:
    assert re.findall(r"`([a-z_.]+)`", ours)[0] in known_words()


def test_an_unknown_profile_is_marked_where_it_was_written() -> None:
    loaded = api.load(GRPO, profile="nope")
    (found,) = loaded.reporter
    text = loaded.sources[found.span.file].text
    assert text[found.span.start : found.span.end] == "nope"


def test_graph_of_a_missing_file_is_bad_usage(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["forgec", "graph", "nope.forge"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2


@pytest.mark.parametrize("command", ["run", "plan", "graph"])
def test_a_folder_where_a_file_belongs(command, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "b.forge").write_text("forge 1\n")
    monkeypatch.setattr("sys.argv", ["forgec", command, str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert f"help: name a file of it: {tmp_path}/b.forge" in capsys.readouterr().err


def test_a_run_folder_where_a_file_belongs(tmp_path) -> None:
    (tmp_path / "job.json").write_text("{}")
    (found,) = api.load(tmp_path).reporter
    assert found.help == (
        f"this is a run folder: `forgec run {tmp_path}/job.json` repeats it, "
        f"`forgec run --resume {tmp_path}` continues it"
    )


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_text_of_windows_is_told_how_to_convert(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "w.forge").write_text("forge 1\n", encoding=encoding)
    (found,) = api.load(tmp_path / "w.forge").reporter
    kind = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    assert (found.code, f"iconv -f {kind} -t UTF-8 {tmp_path}/w.forge" in found.help) == (
        "S014", True,
    )  # fmt: skip


def test_a_device_that_does_not_end_is_no_source() -> None:
    (found,) = api.load("/dev/zero").reporter
    assert found.code == "S012"


def test_nothing_is_near_to_an_empty_word() -> None:
    assert nearest("", ["B", "G"]) == ()
    assert nearest("kl", ["rl"]) == ()  # one letter of two is half of the name
    assert nearest("lr", ["rl"]) == ("rl",)


def test_a_negative_number_of_batches_is_bad_usage(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["forgec", "run", str(GRPO), "--record-batches", "-1"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--record-batches" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message", "help_text"),
    [
        ("sum.forge", "no such file", "did you mean `{}/sums.forge`?"),
        ("r.py", "is Python, not a .forge file", '`import python "r.py" as NAME`'),
        ("a.jsonl", "is data, not a .forge file", "to use it as data"),
        ("a.md", "is Markdown, not a .forge file", "copy that program into a .forge file"),
        ("s.yaml", "is YAML, not a .forge file", "as settings, write `--set-file s.yaml`"),
    ],
)
def test_a_file_that_is_none_of_ours_is_named(
    tmp_path: Path, name: str, message: str, help_text: str
) -> None:
    (tmp_path / "sums.forge").write_text("forge 1\n")
    if name != "sum.forge":
        (tmp_path / name).write_text("import re\n")
    reporter = Reporter()
    assert read_source(tmp_path / name, name, reporter) is None
    (found,) = reporter
    assert message in found.message
    assert help_text.format(tmp_path) in found.help


def test_a_value_is_explained_by_its_last_word() -> None:
    program = api.load(GRPO, profile="none").program
    assert program is not None
    assert suggestions("trainer.lr", program) == "did you mean `trainer.optimizer.lr`?"
    assert "optimizer.lr" in suggestions("trainer.optimizer.learning_rate", program)
