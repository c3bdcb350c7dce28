"""Drawings: nothing overlaps, files are self-contained and stable, the page works in a browser."""

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from big_flow import big_flow
from forge_texts import GRPO, SFT, loaded

from forgedsl.cli.graph import Format, View, drawing_from
from forgedsl.graph.dataflow import build
from forgedsl.plan.plan import plan
from forgedsl.plan.timeline import timeline

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
TEXTS = {"grpo": GRPO, "sft": SFT, "big": big_flow()}


def drawn(text, *overrides):
    found = loaded(text, *overrides)
    graph = build(found.program, reporter=found.reporter)
    made = plan(found.program, graph, reporter=found.reporter)
    assert made is not None, list(found.reporter)
    return drawing_from(found, found.program, graph, made)


@pytest.fixture(scope="module")
def big():
    return drawn(TEXTS["big"])


def overlapping(scene):
    """Pairs of texts and boxes that share room."""
    rects = [(label.text, label.rect) for label in scene.labels]
    rects += [(shape.id, shape.rect) for shape in scene.shapes]
    rects += [(cluster.title, cluster.title_rect) for cluster in scene.clusters]
    return [
        (one, other)
        for i, (one, a) in enumerate(rects)
        for other, b in rects[i + 1 :]
        if a.overlaps(b)
    ]


def test_the_big_pipeline_is_big(big):
    assert len(big.picture("dataflow").boxes) >= 40


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("view", list(View))
def test_no_text_overlaps_another_or_a_box(name, view):
    assert overlapping(drawn(TEXTS[name]).scene(view)) == []


def test_level_wires_pass_no_box_and_no_foreign_label(big):
    scene = big.scene("dataflow")
    for wire in scene.wires:
        if wire.weights:
            continue
        for x0, x1, y in level(wire.path):
            for shape in scene.shapes:
                rect = shape.rect
                if shape.id not in (wire.source, wire.target):
                    assert not (rect.y < y < rect.bottom and x0 < rect.right and rect.x < x1)
            for label in scene.labels:
                rect = label.rect
                assert not (rect.y < y < rect.bottom and x0 < rect.right and rect.x < x1)


def level(path):
    """(left, right, y) of the level stretches of a path."""
    x = y = 0.0
    for letter, numbers in re.findall(r"([MHCV])([-\d. ]*)", path):
        values = [float(value) for value in numbers.split()]
        if letter == "H":
            yield min(x, values[0]), max(x, values[0]), y
            x = values[0]
        elif letter == "V":
            y = values[0]
        else:
            x, y = values[-2:]


def test_frames_hold_their_boxes_and_do_not_meet(big):
    scene = big.scene("dataflow")
    frames = [cluster.rect for cluster in scene.clusters]
    for i, one in enumerate(frames):
        assert not any(one.overlaps(other) for other in frames[i + 1 :])
    picture = big.picture("dataflow")
    group_by_id = {box.id: box.group or picture.home for box in picture.boxes}
    rect_by_name = {c.id.removeprefix("frame/"): c.rect for c in scene.clusters}
    for shape in scene.shapes:
        frame = rect_by_name[group_by_id[shape.id]]
        assert frame.x < shape.rect.x
        assert shape.rect.right < frame.right
        assert frame.y < shape.rect.y
        assert shape.rect.bottom < frame.bottom


@pytest.mark.parametrize("format_", [Format.SVG, Format.HTML, Format.JSON])
@pytest.mark.parametrize("view", list(View))
def test_drawings_are_stable_and_need_nothing_else(view, format_):
    text = drawn(GRPO).render(view, format_)
    assert text == drawn(GRPO).render(view, format_)
    assert text.endswith("\n")
    links = set(re.findall(r"https?://[^\"'\s)<]+", text)) - {"http://www.w3.org/2000/svg"}
    assert links == set()
    assert "@import" not in text


def test_every_box_tells_its_type_and_declaration(big):
    for box in big.picture("dataflow").boxes:
        assert dict(box.details)["produces"]
        assert re.fullmatch(r"test\.forge:\d+:\d+", box.origin)


def test_a_box_makes_what_its_edge_carries():
    critic = (ROOT / "pipelines/ppo_critic.forge").read_text(encoding="utf-8")
    for made in (drawn(GRPO), drawn(critic)):
        boxes = {box.name: dict(box.details) for box in made.picture("dataflow").boxes}
        names = {node.id: node.name for node in made.graph.nodes}
        for edge in made.graph.edges:
            if edge.type and edge.attribute is None:
                assert boxes[names[edge.source]]["produces"] == edge.type


def test_shapes_are_told():
    boxes = {box.name: dict(box.details) for box in drawn(GRPO).picture("dataflow").boxes}
    assert boxes["rollout"]["a step"] == (
        "16 x 8 completions, prompts <= 512, completions <= 1024 tokens"
    )
    assert boxes["ref_lp"]["a step"] == "16 groups, G = 8, T <= 1024"


# ---- the clock


def test_ages_on_the_clock_stay_within_the_bound():
    found = drawn(GRPO, "schedule.max_policy_age=3", "reference.device=gpu",
                  "generator.replicas=1")  # fmt: skip
    bars = timeline(found.graph, found.plan, steps=40)
    ages = [bar.age for bar in bars if bar.age is not None]
    assert len(ages) == 40
    assert max(ages) <= found.plan.schedule.staleness.age_bound == 3


def test_lanes_do_one_thing_at_a_time():
    found = drawn(GRPO)
    bars = timeline(found.graph, found.plan)
    for lane in {bar.lane for bar in bars}:
        mine = sorted((b for b in bars if b.lane == lane), key=lambda b: b.start)
        assert all(a.end <= b.start for a, b in itertools.pairwise(mine))


def test_a_synchronous_schedule_has_age_zero():
    text = GRPO.replace("async { steps = 500, max_policy_age = 1 }", "sync { steps = 5 }")
    found = drawn(text)
    assert {bar.age for bar in timeline(found.graph, found.plan)} == {0, None}


# ---- in a browser

PROBE = """
<script>
const out = {};
const boxes = (name) => [...document.querySelectorAll(`#view-${name} text`)]
  .filter((t) => t.textContent.trim()).map((t) => [t.textContent, t.getBoundingClientRect()]);
const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
const overlaps = (list) => list.flatMap(([a, r], i) => list.slice(i + 1).filter(([, s]) =>
  r.left < s.right - 1 && s.left < r.right - 1 && r.top < s.bottom - 3 && s.top < r.bottom - 3)
  .map(([b]) => `${a} / ${b}`));
addEventListener("load", () => {
  out.overlaps = {};
  for (const name of data.views) { show(name); out.overlaps[name] = overlaps(boxes(name)); }
  show("dataflow");
  const before = panel("dataflow").getAttribute("transform");
  press("+"); out.zoomed = panel("dataflow").getAttribute("transform") !== before;
  press("0"); out.fitted = panel("dataflow").getAttribute("transform") === before;
  press("ArrowLeft"); out.moved = panel("dataflow").getAttribute("transform") !== before;
  press("2"); out.view = current;
  press("1");
  const node = [...document.querySelectorAll("#view-dataflow .node")]
    .find((n) => n.textContent.includes("rollout"));
  out.tabbable = node.tabIndex === 0 && node.getAttribute("role") === "button";
  node.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: 9, clientY: 9}));
  out.tip = tip.getBoundingClientRect().width > 0 ? tip.textContent : "";
  out.arrows = [...document.querySelectorAll("marker")].every((m) => m.querySelector("path"));
  node.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
  const line = document.querySelector("#source li.here");
  out.line = line?.textContent;
  const shown = line.getBoundingClientRect(), room = $("source").getBoundingClientRect();
  out.scrolled = shown.top >= room.top && shown.bottom <= room.bottom;
  out.near = document.querySelectorAll("path.near").length;
  press("Escape"); out.free = document.querySelectorAll(".chosen").length === 0;
  document.getElementById("theme").click();
  out.theme = document.documentElement.dataset.theme;
  document.title = "RESULT" + JSON.stringify(out) + "END";
});
addEventListener("error", (e) => { document.title = "RESULT" + JSON.stringify(
  {error: e.message}) + "END"; });
</script>
"""


PHONE = """
<script>
const out = {};
addEventListener("load", () => {
  const box = canvas.getBoundingClientRect(), map = $("map").getBoundingClientRect();
  const sight = () => +$("seen").getAttribute("x") + $("seen").getAttribute("width") / 2;
  const g = panel(current), s = state[current];
  const at = (type, id, x, y, on) => on.dispatchEvent(new PointerEvent(type,
    {bubbles: true, pointerId: id, clientX: x, clientY: y, buttons: 1}));
  out.cut = g.dataset.width * s.k > box.width;
  out.map = map.width > 100 && map.right <= innerWidth && map.bottom <= box.bottom;
  const before = sight();
  $("map").setPointerCapture = () => {};
  at("pointerdown", 7, map.left + map.width * 0.8, map.top + map.height / 2, $("map"));
  at("pointerup", 7, map.left + map.width * 0.8, map.top + map.height / 2, $("map"));
  out.gone = Math.abs(sight() / g.dataset.width - 0.8) < 0.1 && sight() > before;
  const k = s.k;
  at("pointerdown", 1, 100, 300, canvas); at("pointerdown", 2, 200, 300, canvas);
  at("pointermove", 2, 300, 300, canvas);
  out.pinched = Math.abs(state[current].k / k - 2) < 0.01;
  at("pointerup", 1, 100, 300, canvas); at("pointerup", 2, 300, 300, canvas);
  state[current] = {x: 0, y: 0, k: box.width / g.dataset.width * 0.9}; draw();
  out.whole = $("map").hasAttribute("hidden");
  document.title = "RESULT" + JSON.stringify(out) + "END";
});
addEventListener("error", (e) => { document.title = "RESULT" + JSON.stringify(
  {error: e.message}) + "END"; });
</script>
"""


@pytest.fixture(scope="module")
def probed(big, tmp_path_factory):
    """What the page of the big pipeline does when it is used."""
    return tried(big, tmp_path_factory, PROBE, "1600,900")


@pytest.fixture(scope="module")
def on_phone(big, tmp_path_factory):
    return tried(big, tmp_path_factory, PHONE, "390,844")


def tried(big, tmp_path_factory, probe, size):
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    folder = tmp_path_factory.mktemp("page")
    page = folder / "graph.html"
    page.write_text(big.render(View.DATAFLOW, Format.HTML).replace("</body>", f"{probe}</body>"))
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/p",
         f"--window-size={size}", "--virtual-time-budget=3000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    found = json.loads(re.search("RESULT(.*?)END", done.stdout, re.DOTALL)[1].replace("&gt;", ">"))
    assert "error" not in found, found
    return found


@pytest.mark.parametrize("what", ["cut", "map", "gone", "pinched", "whole"])
def test_a_phone_shows_where_the_rest_is(on_phone, what):
    assert on_phone[what]


def test_real_letters_do_not_overlap(probed):
    assert probed["overlaps"] == {view.value: [] for view in View}


@pytest.mark.parametrize("what", ["zoomed", "fitted", "moved", "tabbable", "free", "arrows"])
def test_the_page_answers(probed, what):
    assert probed[what] is True


def test_views_change_by_key(probed):
    assert probed["view"] == "mesh"


def test_hovering_tells_type_shape_and_place(probed):
    assert "Stream[Group[Rollout]]" in probed["tip"]
    assert "8 x 4 completions" in probed["tip"]
    assert re.search(r"test\.forge:\d+", probed["tip"])


def test_enter_shows_the_declaration_and_its_wires(probed):
    assert probed["line"].strip() == "rollout = generator.sample(prompt, n = 4)"
    assert probed["scrolled"]
    assert probed["near"] > 3


def test_ids_are_used_once(big):
    page = big.render(View.DATAFLOW, Format.HTML)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_the_theme_can_be_turned(probed):
    assert probed["theme"] in ("dark", "light")
