"""The text of HIR, graph and plan reads back as an equal object."""

from pathlib import Path

import pytest
from forge_trees import expressions
from hypothesis import given, settings
from hypothesis import strategies as st

from forgedsl.hir.evaluate import Bytes, Seconds
from forgedsl.hir.ir import Constructor, Origin, Ref, Value
from forgedsl.irtext import IrTextError, print_ir, read_ir, same
from forgedsl.irtext.same import difference
from forgedsl.passes import Request, compile_program
from forgedsl.records import replace
from forgedsl.schema.types import Auto
from forgedsl.source import NO_SPAN, SourceFile, Span

ROOT = Path(__file__).parents[2]
PROFILES = {"grpo_math": ("none", "cpu", "gpu1", "gpu2", "gpu4", "cluster", "gpu_tiny")}
CASES = [
    (path, profile)
    for path in sorted((ROOT / "pipelines").glob("*.forge"))
    for profile in PROFILES.get(path.stem, ("none",))
]


@pytest.mark.parametrize(("path", "profile"), CASES, ids=lambda v: getattr(v, "stem", v))
def test_every_pipeline_reads_back(path, profile):
    state = compile_program(Request(path=path, profile=profile), until="plan").state
    assert state is not None
    sources = state.loader.sources
    text = print_ir(state.hir, sources)
    program = read_ir(text)
    assert difference(state.hir, program) is None
    assert print_ir(program, sources) == text
    graph = print_ir(state.graph, sources)
    assert read_ir(graph) == state.graph
    plan = print_ir(state.plan, sources, externals={"program": state.hir})
    assert difference(state.plan, read_ir(plan, externals={"program": program})) is None


def test_the_form_is_readable(golden, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = Path("pipelines/grpo_math.forge")
    state = compile_program(Request(path=path, profile="cpu"), until="plan").state
    assert state is not None
    text = print_ir(state.graph, state.loader.sources)
    assert max(len(line) for line in text.split("\nfile 0")[0].splitlines()) <= 100
    golden("grpo_math/cpu/graph.ir", text)


SOURCES = {"a.forge": SourceFile("a.forge", "one\ntwo three\n\nfour")}
spans = st.builds(
    lambda file, start, length: Span(file, start, start + length),
    st.sampled_from(["a.forge", "not read", ""]), st.integers(0, 30), st.integers(0, 9),
)  # fmt: skip
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.builds(Auto),
    st.builds(Ref, name=st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)),
    st.floats(0, 1e9).map(Seconds),
    st.integers(0, 2**40).map(Bytes),
    spans,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(
            Constructor, name=st.just("hf"), span=spans,
            args=st.dictionaries(st.text(max_size=5), inner, max_size=3),
        ),
        st.builds(
            Value, value=inner, place=st.none() | spans,
            origin=st.builds(
                Origin, layer=st.sampled_from(["default", "file", "profile", "set"]),
                detail=st.text(max_size=8), span=st.none() | spans,
            ),
        ),
    ),
    max_leaves=8,
)  # fmt: skip


def wrapped(value):
    return Constructor(name="f", args={"x": value}, span=NO_SPAN)


@given(values)
@settings(deadline=None)
def test_every_value_reads_back(value):
    record = wrapped(value)
    assert difference(read_ir(print_ir(record, SOURCES)), record) is None


@given(expressions)
@settings(deadline=None)
def test_every_expression_reads_back(expr):
    record = wrapped(expr)
    assert difference(read_ir(print_ir(record, SOURCES)), record) is None


def test_expressions_keep_the_place_of_every_part():
    path = ROOT / "pipelines" / "grpo_math.forge"
    state = compile_program(Request(path=path, profile="none"), until="hir").state
    assert state is not None
    assert state.hir is not None
    text = print_ir(state.hir, state.loader.sources)
    assert "`0.85 * correct + 0.1 * thinking + 0.05 * brevity`" in text
    (read,) = {read_ir(text).rubrics["math_score"].settings["score"].value.expr}
    assert read == state.hir.rubrics["math_score"].settings["score"].value.expr


def test_a_difference_is_found_and_named():
    path = ROOT / "pipelines" / "sft_math.forge"
    state = compile_program(Request(path=path, profile="none"), until="graph").state
    assert state is not None
    assert state.graph is not None
    assert state.hir is not None
    first, *rest = state.graph.nodes
    changed = replace(state.graph, nodes=(replace(first, name="other"), *rest))
    assert difference(state.graph, changed) == ".nodes[0].name"
    assert not same(state.graph, changed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hir.Nothing()", "no record is called hir.Nothing"),
        ("hir.Ref(name = %here)", "%here is not defined"),
        ("hir.Ref(name = ", "expected a value"),
        ("hir.Ref ?", "cannot read"),
    ],
)
def test_what_is_no_text_form_is_refused(text, words):
    with pytest.raises(IrTextError, match=words):
        read_ir(text)
