"""`forgec lint` as a person or a tool meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GRPO = ROOT / "pipelines" / "grpo_math.forge"


def forgec(*args, cwd=ROOT, env=()):
    return subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", **dict(env)},
        check=False,
    )


def edited(tmp_path, old, new):
    """A copy of grpo_math.forge with its last `old` replaced, in tmp_path, beside its data."""
    for name in ("data", "models"):
        (tmp_path / name).symlink_to(GRPO.parent / name)
    head, found, tail = GRPO.read_text("utf-8").rpartition(old)
    assert found
    path = tmp_path / "edited.forge"
    path.write_text(head + new + tail, "utf-8")
    return path


def test_shipped_pipelines_are_clean():
    result = forgec("lint", *sorted(Path("pipelines").glob("*.forge")))
    assert (result.returncode, result.stderr) == (0, "")
    assert "error" not in result.stdout
    assert "warning" not in result.stdout


def test_the_standard_library_is_clean():
    result = forgec("lint", "pipelines", "--format", "json")
    found = [(d["severity"], d["code"]) for d in json.loads(result.stdout)["diagnostics"]]
    assert (result.returncode, found) == (0, [])


def test_a_misspelt_name_is_pointed_at_with_the_right_suggestion(tmp_path):
    path = edited(tmp_path, "1 - eps", "1 - epss")
    result = forgec("lint", path, "--format", "json")
    document = json.loads(result.stdout)
    (found,) = document["diagnostics"]
    text = path.read_text("utf-8")
    span = found["span"]
    assert result.returncode == 1
    assert found["code"] == "F101"
    assert text[span["start"]["offset"] : span["end"]["offset"]] == "epss"
    assert text.splitlines()[span["start"]["line"] - 1][span["start"]["column"] - 1 :][:4] == "epss"
    assert found["help"] == "did you mean `eps`?"
    assert found["fix"]["edits"][0]["text"] == "eps"


@pytest.mark.parametrize(
    ("old", "new", "code", "help_text"),
    [
        ("weight_decay = 0.1", "weight_decy = 0.1", "F103", "did you mean `weight_decay`?"),
        ("service generator : vllm", "service generator : vlm", "F101", "did you mean `vllm`?"),
        ("= drop\n}", "= dorp\n}", "F113", "did you mean `drop`?"),
        ("rubric math_score", "rubrc math_score", "F101", "did you mean `rubric`?"),
        (" math_score(", " math_scor(", "F101", "did you mean `math_score`?"),
        ("loss = grpo)", "loss = grop)", "F101", "did you mean `grpo`?"),
        ("generator.sample(", "generator.smaple(", "F101", "did you mean `sample`?"),
        (" -> generator", " -> generatr", "F101", "did you mean `generator`?"),
        ("rl.math_equal", "rl.math_eqaul", "F101", "did you mean `math_equal`?"),
        ("r.num_tokens", "r.num_token", "F101", "did you mean `num_tokens`?"),
        ("split = \"train\"", "spilt = \"train\"", "F114", "did you mean `split`?"),
        ("  schedule.steps = 250", "  schedul.steps = 250", "F101", "did you mean `schedule`?"),
    ],
)  # fmt: skip
def test_unknown_names_and_settings_are_errors_with_a_suggestion(
    tmp_path, old, new, code, help_text
):
    result = forgec("lint", edited(tmp_path, old, new), "--format", "json")
    found = [(d["code"], d["help"]) for d in json.loads(result.stdout)["diagnostics"]]
    assert result.returncode == 1
    assert (code, help_text) in found


@pytest.mark.parametrize(
    ("content", "exit_code", "code"),
    [
        (b"", 1, "S015"),
        (bytes(range(256)), 1, "S014"),
        (b"\xff\xfe\x41", 1, "S013"),
        (b"dataset gsm8k {\n  system = none\n\nparam a : int = 1\n", 1, "S003"),
        (None, 2, "S016"),
    ],
)
def test_what_is_no_program_gives_one_clear_message(tmp_path, content, exit_code, code):
    path = tmp_path / "x.forge"
    if content is not None:
        path.write_bytes(content)
    result = forgec("lint", path)
    assert result.returncode == exit_code
    assert result.stdout.count("error[") == 1
    assert f"error[{code}]" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_json_has_its_fields_and_is_printed_for_a_clean_file_too():
    result = forgec("lint", "pipelines/sft_math.forge", "--format", "json")
    assert json.loads(result.stdout) == {"format_version": "1.1", "diagnostics": []}


def test_concise_is_one_line_per_finding(tmp_path):
    path = tmp_path / "x.forge"
    path.write_text("param a = 1\n")
    result = forgec("lint", "x.forge", "--format", "concise", cwd=tmp_path)
    assert result.stdout.startswith("x.forge:1:9: error[S025] parameter `a` has no type")


def test_a_mistake_under_one_profile_names_it(tmp_path):
    path = edited(tmp_path, "gpu_memory = 141GiB", "gpu_memory = 141")
    (found,) = json.loads(forgec("lint", path, "--format", "json").stdout)["diagnostics"]
    assert (found["code"], found["profiles"]) == ("F109", ["cluster"])


def test_profile_restricts_the_check(tmp_path):
    path = edited(tmp_path, "gpu_memory = 141GiB", "gpu_memory = 141")
    assert forgec("lint", path, "--profile", "cpu").returncode == 0
    assert forgec("lint", path, "--profile", "cluster").returncode == 1
    assert forgec("lint", path, "--profile", "none").returncode == 0


def test_an_unknown_profile_is_an_error():
    result = forgec("lint", GRPO, "--profile", "clutser")
    assert result.returncode == 1
    assert "did you mean `cluster`?" in result.stdout


def test_set_and_set_file_are_checked(tmp_path):
    settings = tmp_path / "x.toml"
    settings.write_text("[trainer]\nproc = 4\n")
    assert "has no setting `proc`" in forgec("lint", GRPO, "--set-file", settings).stdout
    assert "has no setting `lrr`" in forgec("lint", GRPO, "--set", "trainer.optimizer.lrr=1").stdout


def test_a_failed_requirement_shows_values_and_their_origin():
    result = forgec("lint", GRPO, "--set", "max_new=8192", "--profile", "none")
    assert "this requirement is not met" in result.stdout
    assert "'---- 8704 ---------'    false" in result.stdout
    assert "max_new: --set max_new=8192 (default 1024, line 10)" in result.stdout


def test_colour_follows_the_environment(tmp_path):
    path = tmp_path / "x.forge"
    path.write_text("param a = 1\n")
    plain = {"NO_COLOR": "1", "FORCE_COLOR": "1"}
    assert "\x1b[" not in forgec("lint", path, env=plain).stdout
    assert "\x1b[" in forgec("lint", path, env={"NO_COLOR": "", "FORCE_COLOR": "1"}).stdout


@pytest.mark.parametrize(
    "args", [("lint",), ("lint", GRPO, "--format", "yaml"), ("lnt", GRPO), ("lint", "--nope", GRPO)]
)
def test_bad_usage_exits_2_and_says_so_on_stderr(args):
    result = forgec(*args)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr


@pytest.mark.parametrize(
    ("problem", "kind", "exit_code"),
    [(None, "usage", SystemExit), (KeyboardInterrupt(), "interrupted", KeyboardInterrupt),
     (ZeroDivisionError("planted"), "internal", ZeroDivisionError)],
)  # fmt: skip
def test_json_stays_json_whatever_happens(monkeypatch, capsys, problem, kind, exit_code):
    from forgedsl.cli import lint

    def fail(*_args, **_options):
        raise problem

    if problem is not None:
        monkeypatch.setattr(lint, "_lint", fail)
    with pytest.raises(exit_code):
        lint.main([str(GRPO), "--format", "json", *(["--nope"] if problem is None else [])])
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == kind


def test_a_wrong_configuration_is_json_too(monkeypatch, capsys):
    from forgedsl.cli import lint

    assert lint.main([str(GRPO), "--format=json", "--ignore", "L405"]) == 2
    assert json.loads(capsys.readouterr().out)["diagnostics"] == []


def test_paths_alone_mean_what_the_parser_makes_of_them():
    from forgedsl.cli import lint

    words = ["a.forge", "folder"]
    parsed = lint.Options(**vars(lint.parser().parse(words)))
    assert lint.options_of(words) == parsed


def test_a_misspelt_command_gets_a_suggestion():
    assert "did you mean `lint`?" in forgec("lnt").stderr


def test_what_a_program_has_no_use_for_is_not_imported():
    code = (
        "import sys\nfrom forgedsl.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "unused = {'argparse', 'ast', 'dataclasses', 'hashlib', 'inspect', 'locale',\n"
        "    'forgedsl.api', 'forgedsl.emit.torch', 'forgedsl.hir.environments',\n"
        "    'forgedsl.hir.pyimport', 'forgedsl.lint.environments', 'forgedsl.report.full',\n"
        "    'forgedsl.lint.rules.x802', 'forgedsl.lint.rules.r530', 'forgedsl.lint.rules.d607'}\n"
        "print(sorted(unused & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "lint", str(GRPO)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("lint", GRPO)])
def test_nothing_heavy_is_imported(args):
    code = (
        "import sys\nfrom forgedsl.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'networkx', 'pydantic', 'rich', 'jinja2', 'vllm', 'monarch'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert result.stderr.strip() == "[]"


def test_a_bug_of_ours_exits_70_and_says_it_is_one(monkeypatch, capsys, tmp_path):
    from forgedsl.cli import main

    def crash(_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(main, "app", crash)
    monkeypatch.setattr("sys.argv", ["forgec", "graph"])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 70
    assert "this is a bug in forgec" in capsys.readouterr().err


def test_a_module_with_an_open_parameter_lints_deeply(tmp_path):
    module = tmp_path / "m.forge"
    module.write_text('forge 1\nparam n : int\nmodel m { source = hf("a/b"), context = n }\n')
    result = forgec("lint", "--deep", module)
    assert (result.returncode, "F110" in result.stdout) == (0, False)


def test_the_package_runs_as_a_module(tmp_path):
    command = [sys.executable, "-m", "forgedsl", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout.startswith("forgec 0.1.0")


def test_a_program_without_a_flow_is_an_error_a_module_is_not(tmp_path):
    module = tmp_path / "m.forge"
    text = 'model m { source = hf("a/b") }\nservice s : titan(m) { optimizer { lr = 1e-4 } }\n'
    module.write_text(text)
    program = tmp_path / "p.forge"
    program.write_text(f"{text}schedule sync {{ steps = 1 }}\n")
    assert forgec("lint", module).returncode == 0
    result = forgec("lint", program)
    assert result.returncode == 1
    assert "the file has no flow" in result.stdout


def test_a_missing_file_is_an_error_only_where_the_data_is_looked_for(tmp_path):
    path = edited(tmp_path, "arithmetic_test.jsonl", "arithmetc_test.jsonl")
    deep = ("--deep", "--profile", "gpu_tiny")
    codes = [forgec("lint", path, *words).returncode for words in ((), deep)]
    assert codes == [0, 1]
