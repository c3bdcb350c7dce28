"""The documentation as a site: colours, links, generated pages, and a whole build."""

import re
import subprocess
from pathlib import Path

import pytest
from pygments.token import Error, Keyword, Name, Number

from forgedsl.docs.lexer import ForgeLexer
from forgedsl.docs.site.links import dead_links
from forgedsl.docs.site.staging import DeadLink, Stage

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "pipelines").rglob("*.forge"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_character_of_a_pipeline_has_a_colour(path: Path) -> None:
    text = path.read_text("utf-8")
    tokens = [*ForgeLexer(stripnl=False, ensurenl=False).get_tokens(text)]
    assert "".join(part for _, part in tokens) == text
    assert [part for kind, part in tokens if kind is Error] == []


def test_words_have_the_colours_of_their_kinds() -> None:
    text = "model policy { context = 4096, arch = auto }\n"
    found = {part: kind for kind, part in ForgeLexer().get_tokens(text)}
    assert [found[word] for word in ("model", "policy", "4096", "auto", "context")] == [
        Keyword.Declaration, Name.Function, Number, Keyword.Constant, Name,
    ]  # fmt: skip


def staged(tmp_path: Path, path: str, text: str) -> str:
    return Stage(ROOT, tmp_path).rewritten(text, path)


@pytest.mark.parametrize(
    ("path", "link", "expected"),
    [
        ("docs/index.md", "../README.md#status", "project/readme.md#status"),
        ("docs/index.md", "guide/8-data.md", "guide/8-data.md"),
        ("docs/guide/judges.md", "../../pipelines/writing.forge", "../pipelines/writing.md"),
        ("docs/guide/8-data.md", "../reference/rules.md#l405-exp-of-log-ratio",
         "../reference/rules/L405.md"),
        ("docs/guide/python.md", "../examples/grpo_by_hand.py",
         "../sources/docs/examples/grpo_by_hand.py.md"),
        ("README.md", "docs/index.md", "../index.md"),
        ("docs/index.md", "https://example.org/a.md", "https://example.org/a.md"),
    ],
)  # fmt: skip
def test_links_lead_to_the_page_on_the_site(
    tmp_path: Path, path: str, link: str, expected: str
) -> None:
    assert staged(tmp_path, path, f"see [it]({link})\n") == f"see [it]({expected})\n"


def test_code_keeps_its_text(tmp_path: Path) -> None:
    text = "`[a](b)` and\n\n```text\n[a](b)\n```\n\n    [a](b)\n"
    assert staged(tmp_path, "docs/index.md", text) == text


def test_a_link_to_no_file_stops_the_build(tmp_path: Path) -> None:
    with pytest.raises(DeadLink, match=r"docs/index.md: there is no file docs/gone.md"):
        staged(tmp_path, "docs/index.md", "[gone](gone.md)")


def test_lists_are_as_python_markdown_reads_them(tmp_path: Path) -> None:
    text = "Two:\n- one\n  - in it\n- two\n"
    assert staged(tmp_path, "docs/index.md", text) == "Two:\n\n- one\n    - in it\n- two\n"


def test_the_name_of_a_file_is_the_title_of_its_block(tmp_path: Path) -> None:
    text = "```forge sums.forge\nforge 1\n```\n```forge alone\nforge 1\n```\n"
    found = staged(tmp_path, "docs/index.md", text)
    assert re.findall(r"^```forge.*", found, re.M) == ['```forge title="sums.forge"', "```forge"]


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="#top">x</a><a href="sub/b.html#here">x</a>'
        '<a href="gone.html">x</a><a href="#away">x</a><script src="https://cdn.example/x.js">'
    )
    (tmp_path / "sub/b.html").write_text('<a href="../a.html" id="here">x</a>')
    assert dead_links(tmp_path) == [
        "a.html: gone.html (no such file)",
        "a.html: #away (no such place)",
        "a.html: https://cdn.example/x.js (loaded from another host)",
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built as `make site` does."""
    made = subprocess.run(
        ["sh", "requirements/site.sh"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if made.returncode == 2:
        pytest.skip("no package registry: requirements/site.txt cannot be installed")
    assert made.returncode == 0, made.stderr
    out = tmp_path_factory.mktemp("site") / "out"
    done = subprocess.run(
        [".venv-site/bin/python", "-m", "forgedsl.docs.site", "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return out


@pytest.mark.full
def test_a_page_for_each_document_rule_and_pipeline(site: Path) -> None:
    from forgedsl.explain.codes import pages

    guide = {path.stem for path in (ROOT / "docs/guide").glob("*.md")}
    assert {path.stem for path in (site / "guide").glob("*.html")} == guide
    assert {path.stem for path in (site / "reference/rules").glob("*.html")} == {"index", *pages()}
    shipped = {path.stem for path in (ROOT / "pipelines").glob("*.forge")}
    assert {path.stem for path in (site / "pipelines").glob("*.html")} == {"index", *shipped}


@pytest.mark.full
def test_forge_blocks_are_coloured(site: Path) -> None:
    page = (site / "pipelines/grpo_math.html").read_text("utf-8")
    assert '<span class="kd">model</span>' in page
    assert '<span class="s">"Qwen/Qwen3-1.7B"</span>' in page


@pytest.mark.full
def test_a_pipeline_shows_what_was_measured_its_graph_and_its_plan(site: Path) -> None:
    page = (site / "pipelines/grpo_math.html").read_text("utf-8")
    assert "0.455 -&gt; 0.847" in page
    assert "policy age" in page
    assert "rollout" in (site / "pipelines/grpo_math.dark.svg").read_text("utf-8")
