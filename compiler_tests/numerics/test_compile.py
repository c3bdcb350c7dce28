"""torch.compile over a training step with a loss in it: one graph, the same gradients."""

from __future__ import annotations

import os

import pytest
import torch
import torch._dynamo.testing
from torch import distributed as dist

from forgedsl_runtime.losses.autograd import evaluate

BACKEND = "inductor" if os.environ.get("FORGE_DEEP") == "1" else "aot_eager"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch._dynamo.reset()


def step_of(loss, form):
    """A step with something to compile on both sides of the loss."""

    def step(hidden, weight, call):
        hidden = torch.tanh(hidden)
        if form == "logits":
            out = loss(logits=hidden @ weight.t(), **call)
        else:
            out = loss.linear(hidden=hidden, weight=weight, **call)
        return 2 * out.loss, out.metrics, out.kernel

    return step


@pytest.mark.parametrize("form", ["logits", "linear"])
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("name", ["grpo_entropy", "gspo", "dpo"])
def test_one_graph(losses, name, backend, form):
    loss = losses.standard(name).using(backend)
    case = losses.make_case(loss, dtype=torch.float32, noise=1e-4)
    call = {"temperature": 0.7, **case.batch, **case.inputs}
    step = step_of(loss, form)
    compiled = torch.compile(step, fullgraph=True, backend=BACKEND)
    got, metrics, kernel = compiled(case.hidden, case.weight, call)
    want, want_metrics, _ = step(case.hidden, case.weight, call)
    assert kernel == f"{backend}/{form}"
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(metrics, want_metrics)
    torch.testing.assert_close(losses.gradients(got, case), losses.gradients(want, case))


def test_new_lengths_do_not_compile_again(losses):
    loss = losses.standard("dapo")
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step_of(loss, "linear"), fullgraph=True, backend=counter)
    for length in range(4, 10):
        case = losses.make_case(loss, lengths=(length, length), dtype=torch.float32)
        call = {**case.batch, **case.inputs, "num_tokens": torch.tensor(float(length))}
        compiled(case.hidden, case.weight, call)[0].backward()
    assert counter.frame_count <= 2  # the first length, then any length


def test_gradients_accumulate_through_the_graph(losses):
    loss = losses.standard("dapo")
    case = losses.make_case(loss, dtype=torch.float32)
    call = {**case.batch, **case.inputs}
    compiled = torch.compile(step_of(loss, "linear"), fullgraph=True, backend="aot_eager")
    for _ in range(2):
        compiled(case.hidden, case.weight, call)[0].backward()
    once = losses.gradients(step_of(loss, "linear")(case.hidden, case.weight, call)[0], case)
    torch.testing.assert_close((case.hidden.grad, case.weight.grad), tuple(2 * g for g in once))


def test_without_gradient(losses):
    loss = losses.standard("dapo")
    case = losses.make_case(loss, dtype=torch.float32)
    call = {**case.batch, **case.inputs}
    compiled = torch.compile(step_of(loss, "logits"), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        got = compiled(case.hidden, case.weight, call)[0]
    torch.testing.assert_close(got, step_of(loss, "logits")(case.hidden, case.weight, call)[0])
    assert not got.requires_grad


def test_the_operator_keeps_its_promises(losses):
    """Schema, fake tensors and autograd registration, by PyTorch's own check."""
    loss = losses.standard("dapo")
    case = losses.make_case(loss, dtype=torch.float32)
    names = ["labels", "mask", "seq_id", *case.inputs]
    tensors = [*case.batch.values(), *case.inputs.values()]
    sources = [case.hidden.detach().requires_grad_(), case.weight.detach().requires_grad_()]
    arguments = (loss._number, "linear", [True, True], sources, " ".join(names), tensors, 0.7,
                 -100, None, False, None, None)  # fmt: skip
    torch.library.opcheck(evaluate, arguments)


def test_in_place_is_refused(losses):
    loss = losses.standard("dapo").using("triton")
    case = losses.make_case(loss, dtype=torch.float32)
    call = {**case.batch, **case.inputs, "inplace": True}
    compiled = torch.compile(step_of(loss, "logits"), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="inplace=True overwrites logits"):
        compiled(case.hidden, case.weight, call)


def test_with_a_group(losses):
    loss = losses.standard("dapo")
    case = losses.make_case(loss, dtype=torch.float32)
    call = {**case.batch, **case.inputs}
    want = step_of(loss, "linear")(case.hidden, case.weight, call)[0]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        call["group"] = dist.group.WORLD
        compiled = torch.compile(step_of(loss, "linear"), backend="aot_eager")
        got = compiled(case.hidden, case.weight, call)[0]
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(losses.gradients(got, case), losses.gradients(want, case))
    finally:
        dist.destroy_process_group()
