"""Messages in Python name arguments of Python; those of a command name its options."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forgedsl
from forgedsl import surface
from forgedsl.api import load as load_api
from forgedsl.cli.export import chosen
from forgedsl.cli.overrides import UsageError
from forgedsl.cli.resuming import Difference, refused
from forgedsl.cli.running import new_run_dir

PIPELINES = Path(__file__).parents[2] / "pipelines"
GRPO = PIPELINES / "grpo_math.forge"
NEEDS = 'forge 1\nparam a : int\nmodel m { source = hf("x/y") }\n'
OPTION = re.compile(r"(?<![\w-])--[a-z]|command line")


def said(*arguments: Any, **named: Any) -> str:
    with pytest.raises(forgedsl.PipelineError) as raised:
        forgedsl.load(*arguments, **named)
    return str(raised.value)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"groop": 4}, "<Python: groop>"),
        ({"set": ["group"]}, 'write `p.set("NAME.SETTING=VALUE")`'),
        ({"profle": "cpu"}, "did you mean `profile`?"),
        ({"profile": "cpus"}, 'profile="cpus"'),
        ({"host": "8xBanana"}, 'host="8xBanana": '),
    ],
)
def test_a_mistake_names_the_argument(named: dict[str, Any], told: str) -> None:
    text = said(GRPO, **named)
    assert told in text
    assert not OPTION.search(text)


def test_a_parameter_without_a_value_and_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "a.forge").write_text(NEEDS)
    assert 'or `p.set("a=VALUE")`' in said(tmp_path / "a.forge")
    (found,) = (d for d in load_api(tmp_path / "a.forge").reporter if d.code == "F110")
    assert found.help == "give it a default, or `--set a=VALUE`"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.json").touch()
    assert f'`forgedsl.open_run("{tmp_path}/run").resume()` continues it' in said(tmp_path / "run")
    (tmp_path / "a.toml").touch()
    assert f'write `set_files=["{tmp_path}/a.toml"]`' in said(tmp_path / "a.toml")


def test_the_plan_names_the_host_as_it_was_given() -> None:
    assert 'assumed: host="8xH200"' in repr(forgedsl.load(GRPO, host="8xH200").plan())


def test_shared_messages_know_who_speaks(tmp_path: Path) -> None:
    (tmp_path / "job.json").touch()
    (tmp_path / "metrics.jsonl").write_text("{}")
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-1" / "controller.json").write_text("{}")
    lr = Difference("services.trainer.optimizer.lr", 1.0, 2.0)
    other = Difference("services.trainer.batch.rows", 1, 2)
    with pytest.raises(UsageError, match=f"continue that run with forgec run --resume {tmp_path}$"):
        new_run_dir(tmp_path, "a")
    assert refused([lr]).startswith("--allow numerics accepts")
    with surface.python():
        with pytest.raises(UsageError, match=r"with forgedsl\.open_run\(.*\)\.resume\(\)$"):
            new_run_dir(tmp_path, "a")
        with pytest.raises(UsageError, match="`step` and `best` exclude each other"):
            chosen(tmp_path, 1, "held_out")
        assert refused([lr]).startswith('allow="numerics" accepts')
        assert not OPTION.search(refused([lr, other]))


def test_forms() -> None:
    assert surface.override('a="b"') == '--set a="b"'
    with surface.python():
        assert surface.override('a="b"') == "p.set('a=\"b\"')"
        assert surface.option("--step", "3") == "step=3"
        assert surface.flag("--adapter") == "adapter=True"
    assert not surface.in_python()


def test_a_run_that_python_starts_speaks_python() -> None:
    code = "from forgedsl import surface; print(surface.option('--host', 'a'))"
    for caller, told in (("python", 'host="a"'), ("", "--host a")):
        environment = {surface.VARIABLE: caller}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == told


def test_the_job_does_not_depend_on_who_speaks() -> None:
    mine = forgedsl.load(GRPO, profile="cpu", set=["schedule.steps=3"]).plan().job
    from forgedsl.cli.planning import plan_file

    theirs = plan_file(GRPO, profile="cpu", overrides=("schedule.steps=3",)).lowered
    assert theirs is not None
    assert mine.content_hash == theirs.job.content_hash
    assert mine.model_dump_json() == theirs.job.model_dump_json()


def test_a_pipeline_says_what_it_is() -> None:
    p = forgedsl.load(GRPO, profile="cpu", group=4).set("trainer.optimizer.lr=1e-5", group=8)
    assert repr(p) == f"<Pipeline {GRPO}: profile cpu, group=8, trainer.optimizer.lr=1e-5>"
    assert repr(forgedsl.load(GRPO, profile="none")) == f"<Pipeline {GRPO}: no profile>"
    assert "host 8xH200" in repr(forgedsl.load(GRPO, host="8xH200"))


def test_an_unknown_loss_is_refused_without_torch() -> None:
    code = (
        "import sys, forgedsl\n"
        f"p = forgedsl.load({str(GRPO)!r}, profile='cpu')\n"
        "for call in (p.loss, p.function):\n"
        "    try:\n"
        "        call('nope')\n"
        "    except forgedsl.PipelineError as error:\n"
        "        print(error)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line[:16] for line in done.stdout.splitlines()] == [
        "there is no loss",
        "there is no func",
    ]


@pytest.mark.parametrize("given", ["ab", 5, [1.0, "a"], [[1.0], 2.0], None, {"a": 1}])
def test_a_function_takes_numbers(given: Any) -> None:
    advantage = forgedsl.load(GRPO, profile="cpu").function("group_norm")
    with pytest.raises(forgedsl.PipelineError, match=r"^`r` of group_norm must be a list"):
        advantage(given)


def test_a_function_names_its_arguments() -> None:
    import torch

    pipeline = forgedsl.load(GRPO, profile="cpu")
    advantage = pipeline.function("group_norm")
    with pytest.raises(forgedsl.PipelineError, match=r"group_norm\(r\): missing"):
        advantage()
    with pytest.raises(forgedsl.PipelineError, match="unexpected keyword argument 'score'"):
        advantage([1.0], score=[1.0])
    dapo = forgedsl.load(PIPELINES / "dapo_math.forge", profile="cpu")
    assert dapo.function("rl.group_norm")([1.0, 2.0]) == dapo.function("rl_group_norm")([1.0, 2.0])
    expected = pytest.approx([-1.0, 1.0], abs=1e-3)
    assert advantage((0.0, 1.0)) == advantage(torch.tensor([0.0, 1.0])) == expected
