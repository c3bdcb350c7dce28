"""`forgec doc`: pages of files, of the standard library, of the compiler."""

from pathlib import Path

import pytest

from forgedsl.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def doc(monkeypatch, capsys):
    """Exit code, stdout and stderr of `forgec doc WORDS`."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["forgec", "doc", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return call


@pytest.fixture(scope="module")
def grpo() -> str:
    from forgedsl.cli.doc import _file

    found = _file(ROOT / "pipelines/grpo_math.forge")
    assert not isinstance(found, int)
    return found[1]


def test_a_file_begins_with_what_it_is(grpo: str) -> None:
    assert grpo.startswith("# grpo_math\n\nGRPO on GSM8K: ")


def test_a_parameter_is_described_by_the_comment_behind_it(grpo: str) -> None:
    assert "| `group` | `int` | `8` | completions per prompt |" in grpo


def test_a_setting_has_its_value_and_meaning(grpo: str) -> None:
    assert "| `optimizer.lr` | `1e-6` | learning rate |" in grpo


def test_a_loss_is_shown_as_mathematics_with_its_gradient(grpo: str) -> None:
    assert "d loss / d logprob = [mask] *" in grpo


def test_a_profile_says_when_it_is_chosen(grpo: str) -> None:
    assert "Chosen by itself when `cluster.gpus == 0`." in grpo


def test_the_flow_is_drawn(grpo: str) -> None:
    assert "```mermaid\nflowchart" in grpo


def test_html_is_one_page_that_needs_no_network(doc, tmp_path: Path) -> None:
    assert doc(ROOT / "pipelines/grpo_math.forge", "-o", tmp_path, "--format", "html")[0] == 0
    text = (tmp_path / "grpo_math.html").read_text(encoding="utf-8")
    assert "<svg" in text
    assert 'src="http' not in text
    assert "<script" not in text


def test_a_module_of_functions(doc, tmp_path: Path) -> None:
    path = tmp_path / "mine.forge"
    path.write_text("## Twice r.\nadvantage twice(r: [G] f32) -> [G] f32 = 2.0 * r\n")
    code, text, _ = doc(path)
    assert code == 0
    assert "### twice\n\nTwice r.\n" in text


def test_an_entry_of_the_standard_library(doc) -> None:
    assert doc("rl.dapo")[1].startswith("# dapo\n\nDAPO (2503.14476): clip-higher")


def test_a_reward_of_the_standard_library(doc) -> None:
    assert doc("rl.math_equal")[1].startswith("# math_equal\n\n1 if the answer equals ")


def test_a_kind_with_its_settings(doc) -> None:
    assert "| `max_prompt_tokens` | an integer" in doc("dataset")[1]


def test_a_code(doc) -> None:
    assert doc("L405")[1].startswith("# L405 unbounded-exp\n")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("titan", "# titan"),
        ("sampling", "# sampling, of vllm"),
        ("mixture", "# mixture(sources, weights = ...)"),
        ("rl", "# std/rl"),
    ],
)
def test_what_a_file_names(doc, name: str, title: str) -> None:
    code, out, _ = doc(name)
    assert (code, out.partition("\n")[0]) == (0, title)


def test_an_unknown_name_gets_the_nearest(doc) -> None:
    code, out, err = doc("dapoo")
    assert (code, out) == (2, "")
    assert "did you mean `dapo`" in err


def test_a_missing_file_is_bad_usage(doc) -> None:
    assert doc("nope.forge")[0] == 2


def test_a_file_with_errors_is_not_documented(doc, tmp_path: Path) -> None:
    path = tmp_path / "bad.forge"
    path.write_text("flow train { x = nothing.draw(3) }\n")
    code, out, err = doc(path)
    assert (code, out) == (1, "")
    assert "F101" in err


@pytest.mark.parametrize(("name", "begin"), [("page.md", "# std/rl"), ("page.html", "<!doctype")])
def test_the_name_of_a_page_is_a_file(doc, tmp_path: Path, name: str, begin: str) -> None:
    doc("std/rl", "-o", str(tmp_path / name))
    assert (tmp_path / name).read_text().startswith(begin)
