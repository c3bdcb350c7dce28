"""docs/guide is true: its files lint clean as they grow, its commands print what it says.

A fence's info string says what a block is:

    forge FILE              declarations that are added to FILE, or take the place of older ones
    forge FILE without NAME the same, and a declaration is taken out
    forge FILE gives CODE   the same, but only to see that lint says exactly this
    forge alone             a whole file, or functions for one
    python PATH             the text of a Python file
    python runs             cells that run in turn inside an event loop, as in a notebook
    console                 `$ forgec ...` and what it prints; a line `...` stands for any lines

A file with a flow and a schedule is linted at the end of its page. The chapters continue each
other, so each begins with what the chapters before it have written.
"""

import asyncio
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from forgedsl import api
from forgedsl.cli.host import host_of
from forgedsl.cli.main import main
from forgedsl.diagnostics import Reporter, Severity
from forgedsl.format.printer import format_source
from forgedsl.lint.engine import lint_file
from forgedsl.lower.build import lower
from forgedsl.schema import ALL_KINDS, KINDS, SERVICES, SINGLETONS, builtins
from forgedsl.schema.constructors import STANDARD_REWARDS
from forgedsl.schema.kinds import SYNC
from forgedsl.source import SourceFile
from forgedsl.syntax import ast, parse

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
PAGES = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]
CHAPTERS = [page for page in PAGES if page.name[0].isdigit()]
HOST = host_of("8xH200", "plan")
WRITTEN = ("text", "toml", "python", "json", "yaml", "bash", "lua", "elisp")
"""languages of blocks that are only shown"""
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.S | re.M)


@dataclass
class Project:
    """The files a reader has so far: of each .forge file its declarations by name."""

    folder: Path
    files: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)

    def merged(self, name: str, text: str) -> dict[tuple[str, str], str]:
        before = self.files.get(name, {})
        return before | dict(declarations("\n" + text if before else text))

    def write(self, name: str, parts: dict[tuple[str, str], str]) -> Path:
        path = self.folder / name
        path.write_text("\n".join(parts.values()) + "\n", encoding="utf-8")
        return path

    def add(self, name: str, text: str, without: str = "") -> None:
        parts = self.merged(name, text)
        self.files[name] = {key: part for key, part in parts.items() if key[1] != (without or None)}
        self.write(name, self.files[name])

    def found(self, name: str) -> list[str]:
        """Codes of errors and warnings in a file."""
        diagnostics = lint_file(self.folder / name).diagnostics
        return [d.code for d in diagnostics if d.severity is not Severity.INFO]

    def whole(self) -> list[str]:
        kinds = {"flow", "schedule"}
        return [n for n, parts in self.files.items() if kinds <= {kind for kind, _ in parts}]


def declarations(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Each declaration of a block with what stands above it, by kind and name."""
    source, reporter = SourceFile("block.forge", text), Reporter()
    tree = parse(source, reporter)
    assert [d.message for d in reporter] == []
    nodes = [*([tree.edition] if tree.edition else []), *tree.decls]
    start = 0
    for node in nodes:
        end = text.find("\n", node.span.end)
        kind = getattr(node, "kind", type(node).__name__)
        name = getattr(node, "name", None) or getattr(node, "alias", None) or ""
        if isinstance(node, ast.Require | ast.Assign):
            name = text[node.span.start : node.span.end]
        if kind in SINGLETONS:
            name = ""  # `schedule sync` takes the place of `schedule async`
        yield (kind, name), text[start:end]
        start = end + 1


def printed(command: str, monkeypatch, capsys) -> str:
    """What a command line of ours prints."""
    monkeypatch.setattr("sys.argv", shlex.split(command))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr()
    return (said.out + said.err).strip()


def console(text: str, run) -> str:
    """The block as it should be: the outputs are those of now, `...` where it matches."""
    parts = []
    for command in re.split(r"^\$ ", text, flags=re.M)[1:]:
        line, _, expected = command.partition("\n")
        output = run(line)
        known = ".*".join(map(re.escape, re.split(r"^\.\.\.$", expected.strip(), flags=re.M)))
        matches = re.fullmatch(known, output, re.S) is not None
        parts.append(f"$ {line}\n{expected.strip() if matches else output}\n")
    return "".join(parts)


def blocks(page: Path) -> list[tuple[str, str]]:
    """(info, text) of each block."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def read(page: Path, project: Project) -> None:
    """Take over the files that a page writes, without looking at them."""
    for info, text in blocks(page):
        words = info.split()
        if words[:1] == ["forge"] and words[1] != "alone" and "gives" not in words:
            project.add(words[1], text, *words[3:])
        elif words[:1] == ["python"] and len(words) == 2 and words[1] != "runs":
            write_python(project, words[1], text)


def canonical(text: str) -> str:
    source, reporter = SourceFile("block.forge", text), Reporter()
    return format_source(source, parse(source, reporter))


FORGE_BLOCKS = [
    pytest.param(page, text, id=f"{page.stem}:{i}")
    for page in PAGES
    for i, (info, text) in enumerate(blocks(page))
    if info.startswith("forge")
]


@pytest.mark.parametrize(("page", "text"), FORGE_BLOCKS)
def test_a_block_is_written_as_fmt_writes_it(page: Path, text: str, request) -> None:
    if request.config.getoption("--update-golden"):
        page.write_text(page.read_text("utf-8").replace(text, canonical(text)), "utf-8")
    else:
        assert text == canonical(text)


def write_python(project: Project, name: str, text: str) -> None:
    compile(text, name, "exec")
    path = project.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


async def in_a_loop(text: str, cells: dict[str, object]) -> None:
    """A cell of a notebook: what it defines stays for the next."""
    exec(compile(text, "cell", "exec"), cells)


def planned(loaded: api.Loaded, folder: Path) -> list[str]:
    """What keeps a program from being planned on a large host."""
    if not loaded.reporter.has_errors:
        lower(
            loaded.checked, reporter=loaded.reporter, sources=loaded.sources, base_dir=folder,
            host=HOST,
        )  # fmt: skip
    return [f"{d.code} {d.message}" for d in loaded.reporter if d.severity == "error"]


def check_alone(text: str) -> None:
    if "flow " in text:
        folder = ROOT / "pipelines"
        loaded = api.load_text(text, "alone.forge", folder=folder, profile="none", host=HOST)
        assert planned(loaded, folder) == []
    else:
        api.load_functions(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page: Path, tmp_path: Path, monkeypatch, capsys, request) -> None:
    monkeypatch.chdir(tmp_path)
    project = Project(folder=tmp_path)
    cells: dict[str, object] = {"__name__": "cells"}
    for earlier in CHAPTERS:
        if page in CHAPTERS and earlier < page:
            read(earlier, project)
    for info, text in blocks(page):
        match info.split():
            case ["forge", "alone"]:
                check_alone(text)
            case ["forge", name]:
                project.add(name, text)
            case ["forge", name, "without", gone]:
                project.add(name, text, gone)
            case ["forge", name, "gives", code]:
                project.write(name, project.merged(name, text))
                assert set(project.found(name)) == {code}
                project.write(name, project.files[name])
            case ["python", "runs"]:
                asyncio.run(in_a_loop(text, cells))
            case ["python", name]:
                write_python(project, name, text)
            case ["console"]:
                now = console(text, lambda line: printed(line, monkeypatch, capsys))
                if request.config.getoption("--update-golden"):
                    page.write_text(page.read_text("utf-8").replace(text, now), "utf-8")
                else:
                    assert now == text
            case [language]:
                assert language in WRITTEN, info
            case _:
                pytest.fail(f"what is a block `{info}`?")
    none: dict[str, list[str]] = {name: [] for name in project.whole()}
    assert {name: project.found(name) for name in none} == none
    loads = {name: api.load(tmp_path / name, host=HOST) for name in none}
    assert {name: planned(loaded, tmp_path) for name, loaded in loads.items()} == none


TRL = (Path(__file__).parent / "trl_1_16_0.txt").read_text(encoding="utf-8")


def rows(page: str) -> list[tuple[str, str]]:
    """(theirs, here) of every row of a guide's tables."""
    text = (GUIDE / page).read_text(encoding="utf-8")
    found = re.findall(r"^\| (.*?) \| (.*) \|$", text, re.M)
    return [row for row in found if row[1] != "here"]


def test_every_argument_of_trl_is_answered() -> None:
    named = {name for theirs, _ in rows("from-trl.md") for name in re.findall(r"`(\w+)`", theirs)}
    assert set(TRL.partition("\n")[2].split()) - named == set()


TORCHFORGE = (Path(__file__).parent / "torchforge_grpo.txt").read_text(encoding="utf-8")


def test_every_key_of_torchforge_is_answered() -> None:
    answered = {
        part
        for theirs, _ in rows("from-torchforge.md")
        for name in re.findall(r"`([\w.]+)`", theirs)
        for part in (name, name.split(".")[-1])
    }
    keys = TORCHFORGE.partition("\n")[2].split()
    blocks = ("actors.", "services.")
    missing = {k for k in keys if not k.startswith(blocks) and k.split(".")[-1] not in answered}
    assert missing == set()


def test_the_run_of_torchforge_has_its_sizes() -> None:
    text = (GUIDE / "from-torchforge.md").read_text(encoding="utf-8")
    block = next(body for info, body in BLOCK.findall(text) if info == "forge alone")
    program = api.load_text(block, profile="none").checked
    trainer, dataset = program.services["trainer"].settings, program.datasets["gsm8k"].settings
    assert program.models["policy"].settings["context"].value == 1024 + 1024
    assert trainer["batch.seq_len"].value == 1024 + 1024
    assert trainer["optimizer.decay"].value == "linear"  # what their scheduler does by default
    assert dataset["streaming"].value is True


def names_of_ours() -> set[str]:
    """Settings with and without their block, kinds, names of the library and of expressions."""
    kinds = (*KINDS.values(), *SERVICES.values(), SYNC)
    settings = {setting.name for kind in kinds for setting in kind.settings}
    found = settings | {f"{kind.name}.{name.name}" for kind in kinds for name in kind.settings}
    words = {word for kind in kinds for setting in kind.settings for word in setting.type.words}
    functions, _ = api.load_functions("std/rl")
    fields = {field.name for function in functions.values() for field in function.fields}
    library = {f"rl.{name}" for name in (*functions, *STANDARD_REWARDS)}
    return found | words | fields | library | set(ALL_KINDS) | {"n", "all", "none", "engine.extra"}


OTHERS = {
    "report", "sync", "draw", "replay", "k3", "titan", "vllm", "forgedsl.compat", "hf", "forgec",
    "runs", "proximal", "generator.sample", "trainer.step", "minibatches", "logprob.chosen",
    "logprob.rejected", "row.question",
    *builtins.ROLLOUT_FIELDS, *builtins.RUN_FIELDS,
}  # fmt: skip
FILES = re.compile(r".*\.(jsonl|md|html)")


@pytest.mark.parametrize("page", ["from-trl.md", "from-torchforge.md"])
def test_what_is_named_here_exists(page: str) -> None:
    named = {name for _, ours in rows(page) for name in re.findall(r"`([a-z_][\w.]*)", ours)}
    named = {name for name in named if not FILES.fullmatch(name)}
    assert named - names_of_ours() - OTHERS == set()


def test_the_readme_counts_lines_as_they_are() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    counted = re.findall(r"(\d+) \(`(\w+\.forge)` without its profiles?\)", text)
    assert len(counted) == 2
    assert [(name, int(number)) for number, name in counted] == [
        (name, lines_before_profiles(ROOT / "pipelines" / name)) for _, name in counted
    ]


def lines_before_profiles(path: Path) -> int:
    return path.read_text(encoding="utf-8").partition("\nprofile ")[0].count("\n") + 1
