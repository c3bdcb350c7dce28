"""Random legal flows: the graph, its plan, its drawings and its job keep their invariants."""

import itertools
import os
import re
from pathlib import Path

import pytest
from forge_texts import GRPO, changed, loaded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgedsl.drawing.picture import picture
from forgedsl.drawing.render_dot import render_dot
from forgedsl.drawing.render_mermaid import render_mermaid
from forgedsl.drawing.render_svg import scene_svg
from forgedsl.drawing.render_text import topology_lines
from forgedsl.drawing.scene_dataflow import dataflow_scene
from forgedsl.graph.dataflow import build
from forgedsl.ir.graph import EdgeKind
from forgedsl.lower.build import lower
from forgedsl.plan.plan import plan

FUNCTIONS = """
advantage centred(r: [G] f32) -> [G] f32 = r - mean(r, G)
advantage blend(a: [G] f32, b: [G] f32) -> [G] f32 = 0.5 * a + 0.5 * b
filter some(score: [G] f32) -> bool = max(score, G) > 0.0
"""


@st.composite
def flows(draw):
    """grpo with random filters, extra scores, advantages, a frozen or trained reference."""
    num_scores = draw(st.integers(1, 3))
    lines = [f"  prompt = gsm8k.draw({draw(st.integers(1, 12))})"]
    lines.append(f"  rollout = generator.sample(prompt, n = {draw(st.integers(2, 6))})")
    service = draw(st.sampled_from(["reference", "trainer"]))
    lines.append(f"  ref_lp = {service}.logprobs(rollout)")
    for i in range(num_scores):
        target = draw(st.sampled_from([", prompt.text", ", prompt.target"]))
        lines.append(f"  score{i} = total(rollout{target})")
    kept = "rollout"
    for i in range(draw(st.integers(0, 3))):
        mask = draw(st.sampled_from(["mixed", "some"]))
        score = draw(st.integers(0, num_scores - 1))
        lines.append(f"  kept{i} = {kept}.keep({mask}(score{score}))")
        kept = f"kept{i}"
    lines.append("  adv0 = centred(score0)")
    for i in range(1, num_scores):
        lines.append(f"  adv{i} = blend(adv{i - 1}, centred(score{i}))")
    lines.append(f"  batch = replay({kept}, ref = ref_lp, adv = adv{num_scores - 1})")
    lines.append("  trainer.step(batch, loss = grpo)")
    lines.append(f"  sync trainer -> generator {{ every = {draw(st.integers(1, 2))} }}")
    head, rest = GRPO.split("flow train {")
    schedule = draw(
        st.sampled_from(["sync { steps = 9 }", "async { steps = 9, max_policy_age = 4 }"])
    )
    beta = draw(st.sampled_from(["0.02", "0.0"]))
    head = changed(head, ("beta : float = 0.02", f"beta : float = {beta}"))
    assert rest
    return f"{head}{FUNCTIONS}flow train {{\n" + "\n".join(lines) + f"\n}}\nschedule {schedule}\n"


def planned(text):
    found = loaded(text)
    graph = build(found.program, reporter=found.reporter)
    assert graph is not None, list(found.reporter)
    made = plan(found.program, graph, reporter=found.reporter)
    assert made is not None, list(found.reporter)
    return found.program, graph, made


NUM_FLOWS = 200 if os.environ.get("FORGE_DEEP") == "1" else 25
slow = settings(max_examples=NUM_FLOWS, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@slow
@given(flows())
def test_nodes_come_after_what_they_read_and_lead_to_an_end(text):
    _, graph, _ = planned(text)
    seen: set[str] = set()
    for node in graph.nodes:
        assert all(i.edge in seen for i in node.inputs)
        seen.add(node.name)
    read = {i.edge for node in graph.nodes for i in node.inputs}
    assert seen - read <= {n.name for n in graph.nodes if n.op in ("step", "sync", "score")}
    assert len({node.id for node in graph.nodes}) == len(graph.nodes)


@slow
@given(flows())
def test_text_shows_every_data_edge_once(text):
    _, graph, _ = planned(text)
    shown = sorted(pair for line in topology_lines(graph) for pair in _pairs(line))
    name_by_id = {node.id: node.name for node in graph.nodes}
    data = [edge for edge in graph.edges if edge.kind is EdgeKind.DATA]
    assert shown == sorted((edge.label, name_by_id[edge.target]) for edge in data)


def _pairs(line):
    cells = re.split(r" -+> ", line.strip())
    return list(itertools.pairwise(cells))


@slow
@given(flows())
def test_drawings_are_whole_and_boxes_do_not_overlap(text):
    program, graph, made = planned(text)
    drawing = picture(program, graph, made)
    svg = scene_svg(dataflow_scene(drawing))
    assert svg == scene_svg(dataflow_scene(drawing))
    boxes = _boxes(svg)
    assert len(boxes) == len(drawing.boxes)
    for i, (x, y, w, h) in enumerate(boxes):
        for x2, y2, w2, h2 in boxes[i + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y
    assert render_dot(drawing).count(" -> ") == len(drawing.arrows)
    mermaid = render_mermaid(drawing)
    assert mermaid.count('" --> ') + mermaid.count('" .-> ') == len(drawing.arrows)


def _boxes(svg):
    pattern = r'<rect class="box" x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"'
    return [tuple(map(float, found)) for found in re.findall(pattern, svg)]


@slow
@given(flows())
def test_credits_cover_a_batch_and_the_bound_is_kept(text):
    _, graph, made = planned(text)
    staleness = made.schedule.staleness
    assert staleness.credits >= staleness.prompts
    assert staleness.age_bound <= (made.schedule.max_policy_age or staleness.every - 1)
    assert all(1 <= made.slots[node.name] <= staleness.credits for node in graph.nodes)


@pytest.mark.full
@slow
@given(flows())
def test_jobs_are_deterministic(text):
    def job():
        found = loaded(text)
        lowered = lower(
            found.program, reporter=found.reporter, sources=found.sources, base_dir=Path()
        )
        assert lowered is not None, list(found.reporter)
        return lowered.job.model_dump_json()

    assert job() == job()
