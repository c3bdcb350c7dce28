"""Who wins: default < module < file < profile < --set-file < --set, and what is remembered."""

import pickle
from pathlib import Path

import pytest

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.hir.modules import Loader, pickled_trees
from forgedsl.ir.program import Constructor, Ref
from forgedsl.settings import Auto
from forgedsl.syntax import cache

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo_math.forge"
NO_GPU = api.Host(gpus=0)


def load(**options):
    loaded = api.load(GRPO, **options)
    assert list(loaded.reporter) == []
    return loaded.program


def test_the_profile_is_chosen_by_the_host():
    assert load(host=api.Host(gpus=0)).profile == "cpu"
    assert load(host=api.Host(gpus=1)).profile == "gpu1"
    assert load(host=api.Host(gpus=8)).profile is None
    assert load(host=api.Host(gpus=8), profile="cpu").profile == "cpu"
    assert load(host=NO_GPU, profile="none").profile is None


def test_an_override_of_the_cluster_takes_part_in_the_choice():
    assert load(overrides=["cluster.gpus=0"]).profile == "cpu"


def test_a_profile_changes_what_it_names_and_nothing_else():
    base, cpu = load(profile="none"), load(profile="cpu")
    changed = {
        name
        for name, value in cpu.services["trainer"].settings.items()
        if value.value != base.services["trainer"].settings[name].value
    }
    assert changed == {
        "device", "procs", "gpus", "dtype", "parallel.dp_shard", "optimizer.lr", "batch.seq_len",
        "batch.rows",
    }  # fmt: skip
    assert cpu.functions.keys() == base.functions.keys()
    assert cpu.flow[2:3] == base.flow[2:3]
    assert cpu.schedule.label == "async"


def test_a_profile_may_replace_the_mode_of_the_schedule():
    schedule = load(profile="gpu1").schedule
    assert (schedule.label, schedule.settings["steps"].value) == ("sync", 500)
    assert schedule.settings["max_policy_age"].value is None
    assert schedule.settings["starve_timeout"].value == 600.0


def test_layers_win_in_order(tmp_path):
    settings = tmp_path / "s.toml"
    settings.write_text("max_new = 64\n[trainer.optimizer]\nlr = 0.5\n")
    found = [
        load(profile="none"),
        load(profile="cpu"),
        load(profile="cpu", set_files=[settings]),
        load(
            profile="cpu", set_files=[settings], overrides=["max_new=20", "trainer.optimizer.lr=1"]
        ),
    ]
    assert [p.params["max_new"].value for p in found] == [1024, 16, 64, 20]
    origins = [p.params["max_new"].origin for p in found]
    assert [o.layer for o in origins] == ["default", "profile", "set-file", "set"]
    assert [o.detail for o in origins[1:]] == [
        "profile cpu", f"{settings}: max_new", "--set max_new=20"
    ]  # fmt: skip
    rates = [p.services["trainer"].settings["optimizer.lr"].value for p in found]
    assert rates == [1e-6, 2e-4, 0.5, 1.0]


@pytest.mark.parametrize("text", ["trainer.procs=2", "--trainer.procs=2"])
def test_spellings_of_an_override(text):
    assert load(profile="cpu", overrides=[text]).services["trainer"].settings["procs"].value == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("model_id=Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        ('model_id="a/b"', "a/b"),
        ("group=2 * 4", 8),
        ("eps=1", 1.0),
    ],
)
def test_overrides_are_typed(text, value):
    found = load(profile="none", overrides=[text]).params[text.partition("=")[0]].value
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("group=two", "F109"),
        ("group=2.5", "F109"),
        ("trainer.optimizer.lr=fast", "F109"),
        ("trainer.device=gpuu", "F113"),
        ("nope=1", "F101"),
        ("trainer=1", "F113"),
        ("group", "F121"),
        ("group=", "F121"),
        ("group=(", "S008"),
    ],
)
def test_a_wrong_override_is_a_diagnostic(text, code):
    loaded = api.load(GRPO, profile="none", overrides=[text])
    assert code in [d.code for d in loaded.reporter]
    assert all(d.span.file in loaded.sources for d in loaded.reporter)


def test_values_have_the_types_of_their_settings():
    program = load(profile="cpu")
    policy = program.models["policy"].settings
    assert policy["source"].value == Constructor(
        name="local", args={"path": "models/tiny_math"}, span=policy["source"].value.span
    )
    assert isinstance(policy["arch"].value, Auto)
    assert program.evals["held_out"].settings["dataset"].value == Ref(name="gsm8k")
    assert program.evals["held_out"].settings["sample.temperature"].value == 1.0
    assert program.singletons["logging"].settings["wandb.project"].value == "grpo-math"
    assert program.datasets["gsm8k"].settings["shuffle"].value.args == {"seed": 17}
    assert program.services["reference"].settings["gpus"].value == 0
    assert program.services["reference"].settings["dtype"].value == "f32"
    assert program.services["generator"].settings["mesh_name"].value == "gen"


def test_launcher_and_colocate_are_settings_of_their_own():
    assert load(profile="cluster").singletons["launcher"].settings["value"].value.args[
        "time"
    ] == pytest.approx(12 * 3600)
    refs = load(profile="gpu1").singletons["colocate"].settings["value"].value
    assert [ref.name for ref in refs] == ["trainer", "generator", "reference"]


def test_module_parameters(tmp_path):
    (tmp_path / "lib.forge").write_text(
        "param low : float = 0.1\nparam high : float = low * 2\n"
        "fn span(x: [B] f32) -> [B] f32 = clamp(x, low, high)\n"
    )
    text = (
        'import "lib" as lib(low = base)\nparam base : float = 0.25\nparam x : float = lib.high\n'
    )
    program = api.load_text(text, folder=tmp_path).checked
    assert program.params["x"].value == 0.5
    assert (
        api.load_text(text, folder=tmp_path, overrides=["lib.low=1"]).checked.params["x"].value == 2
    )


def test_modules_that_import_each_other_are_one_error(tmp_path):
    (tmp_path / "a.forge").write_text('import "b" as b\nparam x : int = 1\n')
    (tmp_path / "b.forge").write_text('import "a" as a\nparam y : int = 1\n')
    loaded = api.load(tmp_path / "a.forge")
    assert [d.code for d in loaded.reporter] == ["F116"]


def test_python_rewards_are_read_and_never_run(tmp_path):
    source = "raise SystemExit\ndef score(prompt, response, target):\n  pass\n"
    (tmp_path / "r.py").write_text(source)
    text = 'import python "r.py" as r\nreward a = r.score\n'
    body = api.load_text(text, folder=tmp_path).checked.rewards["a"].body
    assert (body.module, body.name) == ("r.py", "score")
    assert [param.name for param in body.params] == ["prompt", "response", "target"]


def test_a_loss_takes_its_parameters_by_name():
    text = 'import "std/rl" as rl\nloss mine = rl.dapo(clip_high = 0.5)\n'
    mine = api.load_text(text).checked.functions["mine"]
    defaults = {f.name: getattr(f.default, "value", None) for f in mine.fields}
    assert (mine.name, defaults["clip_high"], defaults["clip_low"]) == ("mine", 0.5, 0.2)


def test_a_library_is_parsed_if_its_cache_is_of_another_version(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pickled_trees.cache_clear()
    Loader(Reporter()).library("std/rl")
    (entry,) = (tmp_path / "forgedsl").glob("library-*")
    trees = {"": b"damaged", "dapo": b"damaged", "grpo": pickle.dumps(None)}
    cache.save_plain(entry.name, trees)
    pickled_trees.cache_clear()
    loader = Loader(Reporter())
    names = loader.library("std/rl").names
    assert (names["dapo"].name, names["grpo"].kind) == ("dapo", "loss")
    assert len(loader.standard("std/rl").file.decls) > 40
    pickled_trees.cache_clear()


def test_functions_of_the_standard_library_load_without_a_program():
    functions, sources = api.load_functions("std/rl")
    assert {"sft", "grpo", "dapo", "gspo", "dpo", "k3", "group_norm"} <= functions.keys()
    assert functions["grpo"].span.file in sources
