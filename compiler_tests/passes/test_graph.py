"""The dataflow graph: nodes, ids, levels, joins, pruning, and what is not legal."""

import pytest
from forge_texts import GRPO, SFT, changed, graph_of, text_at

from forgedsl.diagnostics import Severity
from forgedsl.ir.graph import EdgeKind, Level


def names(graph):
    return [node.name for node in graph.nodes]


def only(diagnostics, code):
    found = [d for d in diagnostics if d.code == code]
    assert len(found) == 1, diagnostics
    return found[0]


def test_nodes_in_topological_order_with_the_nested_call_as_a_node():
    graph, diagnostics = graph_of(GRPO)
    assert diagnostics == []
    order = ["prompt", "rollout", "ref_lp", "score", "batch.adv", "batch", "step", "sync"]
    assert names(graph) == order


@pytest.mark.parametrize(
    ("text", "old", "new", "message", "help"),
    [
        (GRPO, "loss = grpo)", "loss = grpo, minibatches = 3)",
         "`minibatches = 3` does not divide the 16 prompts of a batch",
         "`minibatches = 2` or `minibatches = 4`"),
        (SFT, "loss = nll)", "loss = nll, minibatches = 2)",
         "`tulu.batches()` returns a batch without groups, so `minibatches` cannot divide it",
         "use smaller batches: `batch.rows`, `batch.accumulate`"),
    ],
)  # fmt: skip
def test_minibatches_divide_the_groups(text, old, new, message, help):
    graph, diagnostics = graph_of(changed(text, (old, new)))
    found = only(diagnostics, "F130")
    assert (graph, found.message, found.help) == (None, message, help)


def test_levels():
    graph, _ = graph_of(GRPO)
    levels = {node.name: node.level for node in graph.nodes}
    assert levels["prompt"] is Level.GROUP
    assert levels["rollout"] is levels["ref_lp"] is levels["score"] is Level.ROLLOUT
    assert levels["batch.adv"] is Level.GROUP
    assert levels["batch"] is levels["step"] is Level.BATCH


def test_attribute_edge_and_weight_edge():
    graph, _ = graph_of(GRPO)
    attributes = [edge.label for edge in graph.edges if edge.attribute]
    assert attributes == ["prompt.target"]
    weights = [edge for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS]
    ends = [(edge.source.split("#")[0], edge.target.split("#")[0]) for edge in weights]
    assert ends == [("train/sync", "train/rollout")]


def test_ids_do_not_depend_on_sizes_or_places():
    moved = changed(GRPO, ("gsm8k.draw(16)", "gsm8k.draw(64)"), ("forge 1\n", "forge 1\n# hi\n\n"))
    first, second = graph_of(GRPO)[0], graph_of(moved)[0]
    assert [n.id for n in first.nodes] == [n.id for n in second.nodes]


def test_ids_change_with_what_a_node_reads():
    other = changed(GRPO, ("total(rollout, prompt.target)", "total(rollout, prompt.text)"))
    first, second = graph_of(GRPO)[0], graph_of(other)[0]
    differ = {a.name for a, b in zip(first.nodes, second.nodes, strict=True) if a.id != b.id}
    assert differ == {"score"}


def test_beta_zero_removes_reference_node_and_service():
    graph, diagnostics = graph_of(GRPO, "beta=0.0")
    info = only(diagnostics, "F106")
    assert info.severity is Severity.INFO
    assert info.message == "`reference` is not needed: loss `grpo` does not read `ref`"
    assert text_at(GRPO, info) == "reference"
    assert "ref_lp" not in names(graph)
    assert graph.services == ("trainer", "generator")
    assert [i.argument for i in graph.node("batch").inputs] == ["rollout", "adv"]


def test_score_stays_as_a_metric_when_nothing_reads_it():
    text = changed(
        GRPO,
        ("-ratio * adv + beta * rl.k3(logprob, ref)", "-ratio"),
        ("ref = ref_lp, adv = rl.mean_baseline(score)", "ref = ref_lp"),
    )
    graph, _ = graph_of(text)
    assert "score" in names(graph)
    assert "ref_lp" not in names(graph)


def test_logprobs_of_the_trained_service_are_taken_at_the_step():
    text = changed(GRPO, ("reference.logprobs", "trainer.logprobs"))
    graph, _ = graph_of(text)
    assert graph.node("ref_lp").at_step


def test_filter_is_a_mask_and_keep_passes_its_rollouts_on():
    text = changed(
        GRPO,
        (
            "  batch   = replay(rollout",
            "  kept = rollout.keep(mixed(score))\n  batch = replay(kept",
        ),
    )
    graph, _ = graph_of(text)
    assert graph.node("kept.mixed").op == "mask"
    keep = graph.node("kept")
    assert [i.argument for i in keep.inputs] == ["edge", "mask"]
    assert keep.level is Level.ROLLOUT


def test_supervised_flow():
    graph, diagnostics = graph_of(SFT)
    assert diagnostics == []
    assert names(graph) == ["batch", "step"]
    assert graph.services == ("trainer",)


# ---- not legal


def test_flow_without_step():
    text = changed(GRPO, ("  trainer.step(batch, loss = grpo)\n", ""))
    graph, diagnostics = graph_of(text)
    assert graph is None
    assert only(diagnostics, "F130").message == "the flow has no training step"


def test_flow_with_two_steps():
    step = "  trainer.step(batch, loss = grpo)\n"
    text = changed(GRPO, (step, step + step))
    graph, diagnostics = graph_of(text)
    assert graph is None
    found = only(diagnostics, "F130")
    assert found.message == "the flow has more than one step"
    assert found.related[0].span.start < found.span.start


def test_file_without_flow():
    text = GRPO[: GRPO.index("flow train")]
    graph, diagnostics = graph_of(text)
    assert graph is None
    assert only(diagnostics, "F130").message.startswith("there is nothing to run")


def test_generator_that_nobody_syncs():
    text = changed(GRPO, ("  sync trainer -> generator { every = 1 }\n", ""))
    _, diagnostics = graph_of(text)
    found = only(diagnostics, "F107")
    assert text_at(text, found) == "rollout = generator.sample(prompt, n = 8)"
    assert "sync trainer -> generator" in found.help


@pytest.mark.parametrize(
    ("sync", "message"),
    [
        ("trainer -> reference", "`reference` is a titan service, which is frozen"),
        ("reference -> generator", "`reference` is not trained, so its weights do not change"),
    ],
)
def test_sync_into_or_from_what_is_frozen(sync, message):
    text = changed(GRPO, ("sync trainer -> generator", f"sync {sync}"))
    assert only(graph_of(text)[1], "F108").message == message


def test_sync_into_another_model():
    text = changed(
        GRPO,
        ("model policy", 'model other { source = hf("x/y") }\nmodel policy'),
        ("service generator : vllm(policy)", "service generator : vllm(other)"),
    )
    message = "`trainer` trains model `policy`, but `generator` serves model `other`"
    assert only(graph_of(text)[1], "F108").message == message


def test_missing_loss_field():
    text = changed(GRPO, ("ref = ref_lp, adv", "adv"))
    found = only(graph_of(text)[1], "F111")
    assert found.message == "loss `grpo` needs `ref`, which the batch does not have"
    assert found.help.startswith("add it: `replay(..., ref = reference.logprobs(rollout))` of a")


def test_a_misnamed_loss_field_is_one_message():
    text = changed(GRPO, ("ref = ref_lp, adv", "reff = ref_lp, adv"))
    found = only(graph_of(text)[1], "F111")
    assert found.message == "loss `grpo` needs `ref`, but is given `reff`"
    assert found.help == "use the loss's name for it: `replay(..., ref = ...)`"


def test_behavior_without_a_sampler():
    text = changed(
        SFT,
        ("mask: [B, T] bool)", "behavior: [B, T] f32, mask: [B, T] bool)"),
        ("-logprob, mask", "-logprob * exp(clamp(behavior, -1.0, 1.0)), mask"),
    )
    message = "loss `nll` needs `behavior`, but no sampler produced this batch"
    assert only(graph_of(text)[1], "F111").message == message


def test_fields_of_another_sampler_do_not_join():
    text = changed(
        GRPO,
        ("  ref_lp  =", "  second = generator.sample(prompt, n = 8)\n  ref_lp  ="),
        ("reference.logprobs(rollout)", "reference.logprobs(second)"),
    )
    found = only(graph_of(text)[1], "F112")
    assert found.message == "`rollout` and `ref_lp` cannot be joined: different samplers"


STEP_LEVEL = ("adv = rl.mean_baseline(score)", "adv = rl.lite_ppo(score)")


def test_an_advantage_over_the_step_is_a_node_of_the_batch():
    graph, diagnostics = graph_of(changed(GRPO, STEP_LEVEL))
    assert diagnostics == []
    assert graph.node("batch.adv").level is Level.BATCH
    assert [e.type for e in graph.edges if e.label == "batch.adv"] == ["[B] f32"]


def test_a_filter_cannot_read_what_only_the_whole_step_knows():
    text = changed(
        GRPO,
        ("  batch   = ", "  whole   = rl.lite_ppo(score)\n  kept    = rollout.keep(mixed(whole))\n"
         "  batch   = "),
        ("replay(rollout,", "replay(kept,"),
    )  # fmt: skip
    graph, diagnostics = graph_of(text)
    assert graph is None
    found = only(diagnostics, "F130")
    assert found.message == (
        "`mixed` selects the groups of a step and so cannot read `whole`, which needs all of them"
    )
    assert text_at(text, found) == "mixed(whole)"
