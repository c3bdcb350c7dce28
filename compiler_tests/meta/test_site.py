"""The documentation as a site: colours, links, generated pages, a whole build, the playground."""

import functools
import http.server
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pygments.token import STANDARD_TYPES, Error, Keyword, Name, Number, Text, Whitespace

from forgedsl.cli.main import main
from forgedsl.docs import playground
from forgedsl.docs.lexer import ForgeLexer
from forgedsl.docs.site import assets
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
    if shutil.which("npm") is None:
        pytest.skip("no npm on this machine")
    assert made.returncode == 0, made.stderr
    out = tmp_path_factory.mktemp("site") / "out"
    done = subprocess.run(
        [".venv-site/bin/python", "-m", "forgedsl.docs.site", "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "npm cannot install" in done.stderr:
        pytest.skip("no package registry: npm cannot install Pyodide")
    assert (done.returncode, done.stderr) == (0, "")
    return out


def test_a_page_for_each_document_rule_and_pipeline(site: Path) -> None:
    from forgedsl.explain.codes import pages

    guide = {path.stem for path in (ROOT / "docs/guide").glob("*.md")}
    assert {path.stem for path in (site / "guide").glob("*.html")} == guide
    assert {path.stem for path in (site / "reference/rules").glob("*.html")} == {"index", *pages()}
    shipped = {path.stem for path in (ROOT / "pipelines").glob("*.forge")}
    assert {path.stem for path in (site / "pipelines").glob("*.html")} == {"index", *shipped}


def test_forge_blocks_are_coloured(site: Path) -> None:
    page = (site / "pipelines/grpo_math.html").read_text("utf-8")
    assert '<span class="kd">model</span>' in page
    assert '<span class="s">"Qwen/Qwen3-1.7B"</span>' in page


def test_a_pipeline_shows_what_was_measured_its_graph_and_its_plan(site: Path) -> None:
    page = (site / "pipelines/grpo_math.html").read_text("utf-8")
    assert "0.455 -&gt; 0.847" in page
    assert "policy age" in page
    assert "rollout" in (site / "pipelines/grpo_math.dark.svg").read_text("utf-8")


# ---- the playground


def ask(**request: object) -> dict:
    return json.loads(playground.answer(json.dumps(request)))


GRPO = (ROOT / "pipelines/grpo_math.forge").read_text("utf-8")
WRONG = GRPO.replace("1 - eps", "1 - epss")


def test_findings_are_those_of_lint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / playground.NAME).write_text(WRONG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["forgec", "lint", playground.NAME])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().out
    found = ask(ask="check", text=WRONG)
    assert [finding["code"] for finding in found["findings"]] == ["F101"]
    assert found["findings"][0]["text"] in printed
    assert (found["graph"], found["plan"]) == (None, None)


def curves(name: str, settings: dict | None = None, at: dict | None = None) -> dict:
    return ask(ask="curves", text=GRPO, name=name, settings=settings or {}, at=at or {},
               file=["eps", "beta"])  # fmt: skip


def test_a_loss_of_the_file_is_its_formula_at_a_point() -> None:
    found = curves("grpo", {"eps": 0.3}, {"ratio": 1.1, "adv": 2.0, "ref": -1.5})
    drift = -1.5 + 1.0  # ref - logprob
    k3 = math.expm1(drift) - drift
    assert found["value"] == pytest.approx(-1.1 * 2.0 + 0.02 * 1.1 * k3, abs=1e-12)
    slope = -1.1 * 2.0 + 0.02 * 1.1 * (k3 - math.expm1(drift))
    assert found["slope"] == pytest.approx(slope, abs=1e-12)


def test_a_parameter_moves_the_bend_of_the_curve() -> None:
    def bend(eps: float) -> float:
        over = next(c for c in curves("grpo", {"eps": eps})["charts"] if c["over"] == "ratio")
        return min(x for x, slope in zip(over["x"], over["slope"], strict=True) if slope == 0.0)

    assert bend(0.2) == pytest.approx(1.2, abs=0.04)  # points are 0.037 apart
    assert bend(0.5) == pytest.approx(1.5, abs=0.04)


NAMES = [found["name"] for found in ask(ask="check", text=GRPO)["losses"]]


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_has_curves(name: str) -> None:
    page = ask(ask="loss", text=GRPO, name=name)
    assert "d loss / d" in page["text"]
    settings = {slider["name"]: slider["value"] for slider in page["settings"]}
    found = curves(name, settings)
    assert found["charts"]
    for chart in found["charts"]:
        assert all(value is not None for value in (*chart["value"], *chart["slope"]))


def test_a_loss_with_a_mistake_is_an_answer() -> None:
    assert "epss" in ask(ask="loss", text=WRONG, name="grpo")["error"]


def test_completions_are_those_of_an_editor() -> None:
    text = GRPO.replace("sampling { temperature", "sampling { to temperature")
    offset = text.index("to temperature") + 2
    found = ask(ask="complete", text=text, offset=offset)
    assert text[found["start"] : offset] == "to"
    offers = {offer["insert"]: offer for offer in found["offers"]}
    assert offers["top_p"]["detail"] == "a number"
    assert offers.keys() >= {"top_k", "max_tokens"}


NODE = shutil.which("node")
COLOURED = """
import { coloured, compiled } from %s;
let text = "";
process.stdin.on("data", (part) => { text += part; });
process.stdin.on("end", () => {
  const { patterns, texts } = JSON.parse(text);
  process.stdout.write(JSON.stringify(texts.map((each) => coloured(compiled(patterns), each))));
});
"""
ODD = (
    'x = "open\n',
    "f(a, b)\n@ é\n",
    '"""a\n\\u00e9 "b" """',
    "1.5e-6 30s # forge: allow[L405] so\n",
)


def by_pygments(text: str) -> list[list[str]]:
    """The classes of Pygments, neighbours of one class together; errors and spaces have none."""
    found: list[list[str]] = []
    for kind, part in ForgeLexer(stripnl=False, ensurenl=False).get_tokens(text):
        name = "" if kind is Error or kind in (Text, Whitespace) else STANDARD_TYPES[kind]
        if found and found[-1][0] == name:
            found[-1][1] += part
        else:
            found.append([name, part])
    return found


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
def test_the_editor_has_the_colours_of_the_lexer() -> None:
    assert NODE is not None
    texts = [*(path.read_text("utf-8") for path in FILES), *ODD]
    script = (ROOT / "docs/site/playground/colours.js").as_uri()
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", COLOURED % json.dumps(script)],
        input=json.dumps({"patterns": assets.colours(), "texts": texts}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for text, found in zip(texts, json.loads(done.stdout), strict=True):
        assert found == by_pygments(text)


def test_the_archive_needs_the_standard_library_alone(tmp_path: Path) -> None:
    """What the page unpacks answers as this tree does, without any package. Only `lake` and
    `chain_sum` have a finding there: the tables of gymnasium and reasoning-gym are not in a
    browser."""
    assets.archive(ROOT, tmp_path / "forgedsl.zip")
    with zipfile.ZipFile(tmp_path / "forgedsl.zip") as archive:
        archive.extractall(tmp_path / "app")
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
from forgedsl.docs.playground import answer
texts = json.loads(answer('{"ask": "examples"}'))
found = {}
for name, text in texts.items():
    got = json.loads(answer(json.dumps({"ask": "check", "text": text})))
    found[name] = [[f["code"] for f in got["findings"]], got["graph"] is not None]
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code, str(tmp_path / "app")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shipped = {path.stem for path in (ROOT / "pipelines").glob("*.forge")}
    wanted = {name: [[], True] for name in shipped} | {
        name: [["X834"], True] for name in ("lake", "chain_sum")
    }
    assert json.loads(done.stdout) == wanted


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
PROBE = """<!doctype html><iframe id="f" style="width: 390px; height: 844px"></iframe><script>
const frame = document.getElementById("f");
const $ = (id) => frame.contentDocument && frame.contentDocument.getElementById(id);
const all = (words) => frame.contentDocument.querySelectorAll(words);
async function until(what, found) {
  for (let i = 0; i < 1800; i++) {
    const value = found();
    if (value) return value;
    await new Promise((after) => setTimeout(after, 50));
  }
  throw new Error(`${what} never; ${$("pg-state") && $("pg-state").textContent}`);
}
async function open(page) {
  frame.src = page;
  await until(page, () => frame.contentWindow.location.pathname === page && $("pg-state"));
}
function put(input, value) { input.value = value; input.dispatchEvent(new Event("input")); }
function press(key) {
  $("pg-text").dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
}
async function tried() {
  const out = {};
  await open("/playground.html");
  out.begins = $("pg-progress").value;
  await until("ready", () => $("playground").dataset.ready);
  out.loaded = frame.contentWindow.performance.getEntriesByType("resource").map((e) => e.name);
  out.wide = frame.contentDocument.documentElement.scrollWidth;
  const text = $("pg-text").value;
  out.graph = decodeURIComponent(all("#pg-graph img")[0].src).includes("generator.sample(n = 8)");
  out.findings = all(".pg-finding").length;
  await until("charts", () => all(".pg-chart").length);
  const line = () => all("[data-over=ratio] .pg-line")[0].getAttribute("d");
  out.before = line();
  out.value = $("pg-value").textContent;
  put(all("[data-name=eps]")[0], 0.5);
  put(all("[data-name=ratio]")[0], 1.4);
  await until("a curve", () => line() !== out.before && $("pg-value").textContent !== out.value);
  out.after = line();
  out.value = $("pg-value").textContent;
  out.colours = all("#pg-colours .kd").length;
  out.same = $("pg-colours").textContent === `${text}\n`;
  const half = text.replace("sampling { temperature", "sampling { to temperature");
  $("pg-text").value = half;
  $("pg-text").setSelectionRange(half.indexOf("to temp") + 2, half.indexOf("to temp") + 2);
  $("pg-text").dispatchEvent(new InputEvent("input", { data: "o" }));
  await until("offers", () => !$("pg-offers").hidden);
  out.offers = [...all("#pg-offers li span")].map((each) => each.textContent);
  press("ArrowDown");
  press("Enter");
  out.taken = $("pg-text").value.split("\\n").find((line) => line.includes("sampling {"));
  out.closed = $("pg-offers").hidden;
  put($("pg-text"), WRONG);
  await until("a finding", () => all(".pg-finding").length);
  out.finding = all(".pg-finding pre")[0].textContent;
  await open("/broken/playground.html");
  await until("a failure", () => $("pg-state").classList.contains("pg-bad"));
  out.broken = $("pg-state").textContent;
  return out;
}
tried().catch((error) => ({ error: String(error) })).then(
  (out) => fetch("/result", { method: "POST", body: JSON.stringify(out) }));
</script>
"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, the probe, and the site without its archive under /broken."""

    got: dict
    done: threading.Event

    def do_GET(self) -> None:
        if self.path == "/probe.html":
            body = PROBE.replace("WRONG", json.dumps(WRONG)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)
        elif self.path.startswith("/broken/") and self.path.endswith("forgedsl.zip"):
            self.send_error(404)
        else:
            self.path = self.path.removeprefix("/broken")
            super().do_GET()

    def do_POST(self) -> None:
        self.got.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()
        self.done.set()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def tried(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the playground does in a browser."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    mine = type("Mine", (Handler,), {"got": {}, "done": threading.Event()})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(mine, directory=str(site))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = tmp_path_factory.mktemp("chromium")
    browser = subprocess.Popen(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}",
         f"http://127.0.0.1:{server.server_port}/probe.html"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "http_proxy": "", "no_proxy": "127.0.0.1"},
    )  # fmt: skip
    try:
        assert mine.done.wait(180), "the browser gave no result"
    finally:
        browser.terminate()
        browser.wait(30)
        server.shutdown()
    assert "error" not in mine.got, mine.got
    return mine.got


def test_the_playground_loads_from_the_site_alone(tried: dict) -> None:
    assert tried["begins"] < 1
    hosts = {urlsplit(name).hostname for name in tried["loaded"]}
    assert hosts == {"127.0.0.1"}
    assert (tried["findings"], tried["graph"]) == (0, True)


def test_the_editor_colours_and_completes(tried: dict) -> None:
    assert tried["colours"] > 5
    assert tried["same"]
    assert tried["offers"] == ["top_p", "top_k"]
    assert (tried["taken"].split()[2], tried["closed"]) == ("top_p", True)


def test_a_phone_is_wide_enough(tried: dict) -> None:
    assert tried["wide"] <= 390


def test_a_wrong_program_has_the_finding_of_lint(tried: dict) -> None:
    assert tried["finding"] == ask(ask="check", text=WRONG)["findings"][0]["text"]


def test_sliders_move_the_curve(tried: dict) -> None:
    assert tried["before"] != tried["after"]
    found = curves("grpo", {"eps": 0.5, "beta": 0.02}, {"ratio": 1.4})
    assert found["value"] == pytest.approx(-1.4)
    assert tried["value"].startswith("loss -1.4 ")
    assert tried["value"].endswith(f"d loss / d logprob {found['slope']:.4g}")


def test_a_compiler_that_cannot_be_loaded_is_told(tried: dict) -> None:
    assert tried["broken"] == ("the compiler could not be loaded: ./forgedsl.zip: 404 Not Found")
