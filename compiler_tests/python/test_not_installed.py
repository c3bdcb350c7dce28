"""What the Python API says without the packages of a run, and an example without arguments."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "grpo_by_hand.py"
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; import forgedsl; forgedsl.compile_loss"


def test_a_loss_without_torch_says_how_to_install_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    last = done.stderr.split("ModuleNotFoundError: ")[-1]
    assert last.startswith("this needs the package `torch`, which is not installed here;")
    assert "-m pip install --no-deps -r " in last


@pytest.mark.parametrize("arguments", [[], ["sums.forge"], ["sums.forge", "many"]])
def test_an_example_without_arguments_says_how_to_call_it(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, EXAMPLE, *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "usage: python grpo_by_hand.py FILE.forge STEPS\n"
