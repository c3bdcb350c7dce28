"""Random legal flows: their programs state the same job."""

import runpy
import sys
import tempfile
from pathlib import Path

from forge_texts import loaded
from hypothesis import HealthCheck, given, settings
from test_graph_flows import flows

from forgedsl.build.python import modules
from forgedsl.lower.build import lower


def lowered(text):
    found = loaded(text)
    with tempfile.TemporaryDirectory() as folder:
        made = lower(
            found.checked, reporter=found.reporter, sources=found.sources, base_dir=Path(folder)
        )
    return found, made


@given(flows())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_programs_state_the_same_job(text):
    _, made = lowered(text)
    assert made is not None
    hook = sys.excepthook
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, body in modules(made.job).items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(body)
        sys.path.insert(0, name)
        try:
            job = runpy.run_path(str(folder / "main.py"))["program"].job()
        finally:
            sys.path.remove(name)
            sys.modules.pop("functions", None)
            sys.excepthook = hook
    assert job == made.job
