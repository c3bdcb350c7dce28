"""grpo_math: drawings of the graph, plan and job of each profile, against goldens.

One profile has every format of the drawing and the whole job. Of the others there is the drawing as
text, and what in the job is not as under the first: a change of all jobs moves one file.
"""

import json
from pathlib import Path

import pytest

from forgedsl.api import load
from forgedsl.cli.graph import Format, View, drawing_from
from forgedsl.lower.build import lower
from forgedsl.plan.text import render_plan
from forgedsl.sizes.hosts import Host

PIPELINE = Path(__file__).parents[2] / "pipelines" / "grpo_math.forge"
WHOLE, *OTHERS = PROFILES = ("cpu", "gpu1", "cluster")
LAPTOP = Host(gpus=0, gpu=None, gpu_memory=0, cpus=2, memory=8 * 2**30)
HOSTS = {"cpu": LAPTOP, "gpu1": Host(gpus=1), "cluster": Host()}
SUFFIX = {"text": "txt", "mermaid": "mmd"}
FOREIGN = ("program", "topology", "content_hash")
"""Parts of a job that other goldens or tests hold."""


def lowered(profile):
    loaded = load(PIPELINE, profile=profile, host=HOSTS[profile])
    found = lower(
        loaded.checked,
        reporter=loaded.reporter,
        sources=loaded.sources,
        base_dir=PIPELINE.parent,
        host=HOSTS[profile],
    )
    assert found is not None, list(loaded.reporter)
    return loaded, found


def drawn(profile):
    loaded, found = lowered(profile)
    return drawing_from(loaded, loaded.checked, found.graph, found.plan)


@pytest.mark.parametrize(
    ("profile", "format_"),
    [
        *((WHOLE, format_) for format_ in Format if format_ is not Format.HTML),
        *((profile, Format.TEXT) for profile in OTHERS),
    ],
)
def test_graph(golden, profile, format_):
    text = drawn(profile).render(View.DATAFLOW, format_)
    golden(f"grpo_math/{profile}/graph.{SUFFIX.get(format_, format_)}", text)


@pytest.mark.parametrize("view", [View.MESH, View.SCHEDULE, View.PASSES])
def test_other_views_as_text(golden, view):
    golden(f"grpo_math/cluster/{view}.txt", drawn("cluster").render(view, Format.TEXT))


@pytest.mark.parametrize("profile", PROFILES)
def test_plan(golden, profile):
    loaded, found = lowered(profile)
    text = render_plan(
        loaded.checked, found.graph, found.plan, summary=found.job.summary, identity="." * 10
    )
    assert max(map(len, text.splitlines())) <= 100
    golden(f"grpo_math/{profile}/plan.txt", text)


def test_job(golden):
    golden(f"grpo_math/{WHOLE}/job.json", json.dumps(job(WHOLE), indent=1) + "\n")


@pytest.mark.parametrize("profile", OTHERS)
def test_what_a_profile_changes_in_the_job(golden, profile):
    whole, other = flat(job(WHOLE)), flat(job(profile))
    lines = [
        f"{path}: {whole.get(path, 'absent')} -> {other.get(path, 'absent')}\n"
        for path in sorted({*whole, *other})
        if whole.get(path) != other.get(path)
    ]
    golden(f"grpo_math/{profile}/job.txt", "".join(lines))


def job(profile):
    """Hashes of files and generated modules are left out: other people's changes move them."""
    _, found = lowered(profile)
    body = found.job.model_dump(mode="json", exclude=set(FOREIGN))
    for loss in body["losses"].values():
        for generated in ("source", "tree", "kernels"):
            loss.pop(generated, None)
    return _without_hashes(body)


def flat(value, path=""):
    """Texts of the leaves of a tree by their paths."""
    if not value or not isinstance(value, dict | list):
        return {path: json.dumps(value)}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    parts = [flat(item, f"{path}.{name}" if path else str(name)) for name, item in items]
    return {name: text for part in parts for name, text in part.items()}


def _without_hashes(value):
    if isinstance(value, dict):
        return {k: _without_hashes(v) for k, v in value.items() if k != "sha256"}
    return [_without_hashes(item) for item in value] if isinstance(value, list) else value


def test_job_is_deterministic_and_hermetic():
    _, first = lowered("cpu")
    _, second = lowered("cpu")
    text = first.job.model_dump_json()
    assert text == second.job.model_dump_json()
    assert first.job.content_hash == first.job.digest()
    assert str(PIPELINE.parent) not in text
    assert str(Path.home()) not in text
    assert first.files == ()
