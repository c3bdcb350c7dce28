"""What `make test` leaves to `make test-all`, and what the end of a run says of skipped tests."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]
CONFTEST = str(TESTS / "conftest.py")


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> ModuleType:
    found = request.config.pluginmanager.get_plugin(CONFTEST)
    assert isinstance(found, ModuleType)
    return found


@pytest.fixture
def product() -> list[dict[str, int]]:
    """Cases of three parameters, of 4, 3 and 2 values."""
    every = itertools.product(range(4), range(3), range(2))
    return [{"loss": loss, "call": call, "dtype": dtype} for loss, call, dtype in every]


def test_each_value_occurs_in_few_cases(
    conftest: ModuleType, product: list[dict[str, int]]
) -> None:
    kept = [product[number] for number in conftest.covering(product)]
    assert {(name, value) for case in kept for name, value in case.items()} == {
        (name, value) for case in product for name, value in case.items()
    }
    assert len(kept) == 4


def test_each_pair_occurs_in_fewer_cases_than_all(
    conftest: ModuleType, product: list[dict[str, int]]
) -> None:
    kept = [product[number] for number in conftest.covering(product, 2)]
    for one, two in itertools.combinations(("loss", "call", "dtype"), 2):
        assert {(c[one], c[two]) for c in kept} == {(c[one], c[two]) for c in product}
    assert len(kept) < len(product)


def test_a_single_parameter_is_covered_by_all_its_cases(conftest: ModuleType) -> None:
    assert conftest.covering([{"name": 0}, {"name": 1}], 2) == {0, 1}


REASONS = [
    (path.name, reason)
    for path in sorted(TESTS.rglob("*.py"))
    for reason in re.findall(
        r"""(?:pytest\.skip\(|\breason=)\s*f?"([^"]+)""",
        path.read_text("utf-8"),
    )
]


def test_reasons_are_found() -> None:
    assert len(REASONS) > 10


@pytest.mark.parametrize(("file", "reason"), REASONS)
def test_every_reason_to_skip_says_what_would_test_it(
    conftest: ModuleType, file: str, reason: str
) -> None:
    filled = re.sub(r"\{[^}]*\}", "1", reason)  # "needs {gpu + 1} GPU"
    assert "not said" not in conftest.remedy(filled)[1], f"{file}: {reason}"


def test_a_cause_has_one_line(tmp_path: Path) -> None:
    """Two tests of one cause and one of another, in a run of their own."""
    (tmp_path / "conftest.py").write_text(Path(CONFTEST).read_text("utf-8"), encoding="utf-8")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_a(n): pytest.skip('needs 2 GPU')\n"
        "def test_b(): pytest.importorskip('no_such_module')\n"
        "def test_c(): pytest.skip('because')\n",
        encoding="utf-8",
    )
    done = pytest_of(tmp_path)
    assert lines_of(done) == [
        "1 in test_it: because; to test: not said; "
        "add it to REMEDIES of compiler_tests/conftest.py",
        "1 in test_it: could not import 'no_such_module': No module named 'no_such_module'; "
        "to test: pip install no_such_module",
        "2 in test_it: needs 2 GPU; to test: a host with 2 GPU",
    ]


def pytest_of(folder: Path) -> str:
    command = [sys.executable, "-m", "pytest", "test_it.py", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines_of(output: str) -> list[str]:
    return [line for line in output.splitlines() if "; to test: " in line]
