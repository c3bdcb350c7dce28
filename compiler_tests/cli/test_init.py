"""`forgec init`: every template lints clean at once, and nothing is overwritten."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from forge_commands import CliRunner

from forgedsl import api
from forgedsl.cli.app import app
from forgedsl.cli.main import main
from forgedsl.format.printer import format_source
from forgedsl.lint.engine import lint_file
from forgedsl.syntax import parse
from forgedsl.templates import TEMPLATES, project, purposes


@pytest.fixture
def init(monkeypatch, capsys, tmp_path: Path):
    """Exit code, stdout and stderr of `forgec init WORDS` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["forgec", "init", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return call


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_lints_clean_as_written_and_under_each_profile(
    name: str, init, tmp_path: Path
) -> None:
    assert init("here", "--template", name)[0] == 0
    linted = lint_file(tmp_path / "here" / f"{name}.forge")
    assert [f"{d.code} {d.message}" for d in linted.diagnostics if d.severity != "info"] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_canonical(name: str) -> None:
    from forgedsl.diagnostics import Reporter
    from forgedsl.source import SourceFile

    text = project(name)[f"{name}.forge"]
    source = SourceFile("x.forge", text)
    assert format_source(source, parse(source, Reporter())) == text


@pytest.mark.parametrize("name", TEMPLATES)
def test_all_data_of_a_template_is_found_from_anywhere(name: str, tmp_path: Path) -> None:
    from forgedsl.lower.build import lower
    from forgedsl.sizes.hosts import Host
    from forgedsl.sizes.hosts import Host as PlanHost

    for path, text in project(name).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    host = {"hosts": 1, "gpus": 0, "gpu": None, "gpu_memory": 0, "cpus": 4, "memory": 2**35}
    loaded = api.load(tmp_path / f"{name}.forge", host=Host(**host))
    lowered = lower(
        loaded.checked, reporter=loaded.reporter, sources=loaded.sources, base_dir=tmp_path,
        host=PlanHost(**host),
    )  # fmt: skip
    assert [d.message for d in loaded.reporter if d.severity == "error"] == []
    assert lowered is not None
    local = {path for path in project(name) if path.endswith(".py") and "test_" not in path}
    local -= {"environments/nemo_gym_server.py"}  # started before the run
    assert {Path(source).relative_to(tmp_path).as_posix() for source, _ in lowered.files} == local


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_file_has_a_purpose(name: str) -> None:
    assert set(purposes(name)) == set(project(name))


def test_the_reward_passes_its_own_test(init, tmp_path: Path) -> None:
    init("here", "--template", "grpo")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=tmp_path / "here", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, "4 passed" in done.stdout) == (0, True), done.stdout


def test_without_a_terminal_it_is_grpo_and_says_what_to_type(init) -> None:
    code, out, _ = init("here")
    assert code == 0
    assert out.splitlines()[-4:-1] == ["next:", "  cd here", "  forgec lint grpo.forge"]


def test_a_template_says_what_its_agent_needs(init, tmp_path: Path) -> None:
    _, out, _ = init("here", "--template", "verifiers")
    assert "  head -12 agents/verify.py   # needs verifiers; how to install it" in out.splitlines()
    assert "Before a run, install verifiers" in (tmp_path / "here/README.md").read_text()
    assert "needs" not in init("there", "--template", "dapo")[1]
    assert "without changes" in (tmp_path / "there/README.md").read_text()


@pytest.mark.parametrize("name", [name for name in TEMPLATES if TEMPLATES[name].needs])
def test_the_first_lines_of_an_agent_say_how_to_install_what_it_needs(name: str) -> None:
    files = project(name)
    script = next(iter(TEMPLATES[name].files))
    first = "\n".join(files[script].splitlines()[:12])
    assert " -m pip install " in first
    assert f"forgec run {name}.forge" in first


def test_a_pipeline_that_is_there_stays(init, tmp_path: Path) -> None:
    (tmp_path / "grpo.forge").write_text("mine")
    code, out, err = init()
    assert (code, out) == (2, "")
    assert err.startswith("forgec init: grpo.forge already exists; ")
    assert [path.name for path in tmp_path.iterdir()] == ["grpo.forge"]


def test_other_files_that_are_there_are_left_and_named(init, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    _, out, _ = init()
    assert (tmp_path / "README.md").read_text() == "mine"
    assert "  README.md                was there, left as it is" in out


def test_force_overwrites(init, tmp_path: Path) -> None:
    (tmp_path / "grpo.forge").write_text("mine")
    assert init("--force")[0] == 0
    assert (tmp_path / "grpo.forge").read_text().startswith("forge 1")


def test_a_template_that_does_not_exist(init) -> None:
    assert init("--template", "gpro")[2] == (
        "forgec init: there is no template `gpro`; did you mean `grpo`?\n"
    )


def test_a_folder_that_cannot_be_made(init, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("a file")
    code, _, err = init("here/there")
    assert code == 2
    assert err.startswith("forgec: cannot write here/there: ")


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_project_sends_nothing_to_anyone(name: str) -> None:
    assert not any("wandb {" in text for text in project(name).values())


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_first_run_that_a_template_proposes_has_no_warnings(name: str, tmp_path: Path) -> None:
    for path, text in project(name).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    words = ["lint", str(tmp_path / f"{name}.forge"), *TEMPLATES[name].first_try.split()]
    done = CliRunner().invoke(app, words)
    assert "no findings" in done.output, done.output


def test_the_guide_has_the_script_of_the_template_for_verifiers() -> None:
    page = Path(__file__).parents[2] / "docs/guide/from-verifiers.md"
    assert project("verifiers")["agents/verify.py"] in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "package"), [("verifiers", "verifiers==0.4.0"), ("inspect", "inspect-ai==0.3.285")]
)
def test_a_script_whose_package_is_missing_says_how_to_install_it(
    name: str, package: str, tmp_path: Path
) -> None:
    (script,) = TEMPLATES[name].files
    (tmp_path / "agent.py").write_text(project(name)[script])
    done = subprocess.run(
        [sys.executable, "-S", "-E", tmp_path / "agent.py"],  # -S: no packages
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"-m pip install {package}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_program_of_a_template_asks_until_it_is_right(tmp_path: Path) -> None:
    """Against a server of the protocol: wrong, then right."""
    (tmp_path / "agent.py").write_text(project("program")["agents/guess.py"])
    task = {"text": "1+1=", "target": "2", "messages": [{"role": "user", "content": "1+1="}]}
    (tmp_path / "task.json").write_text(json.dumps(task))
    asked, texts = [], ["<answer>3</answer>", "<answer>2</answer>"]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            message = {"role": "assistant", "content": texts[len(asked) - 1]}
            body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *given: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        variables = {
            "FORGE_TASK": str(tmp_path / "task.json"), "FORGE_MODEL": "policy",
            "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, tmp_path / "agent.py"], env=variables,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        server.shutdown()
    assert json.loads(done.stdout) == {"solved": 1.0}, done.stderr
    assert [each["messages"][-1]["content"] for each in asked] == ["1+1=", "-1+1="]
