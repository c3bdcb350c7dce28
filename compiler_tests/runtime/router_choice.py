"""Lets a router choose given experts; prints what it chose, by which weights, and its gradients.

Run by test_router_replay: torchtitan takes a process for itself.
"""

import json

import torch

from forgedsl_runtime.services.titan.upstream.model import select_device

select_device("cpu")

from torchtitan.models import qwen3  # noqa: E402
from torchtitan.models.common.config_utils import make_router_config  # noqa: E402

from forgedsl_runtime.services.titan.upstream.router import as_replaying  # noqa: E402

ACTIVE = 3


def main() -> None:
    config = make_router_config(
        dim=16, num_experts=8, gate_param_init=qwen3._LINEAR_INIT, top_k=ACTIVE,
        score_func="softmax", route_norm=True,
    )  # fmt: skip
    router = as_replaying(config).build()
    torch.manual_seed(0)
    with torch.no_grad():
        router.gate.weight.normal_()
    inputs = torch.randn(1, 4, 16)
    _, own, scores = router(inputs)
    given = torch.tensor([[[0, 1, 2], [7, 3, 5], [-1, -1, -1], own[0, 3].tolist()]])
    router.given, router.changed = given, torch.zeros(2)
    router.train()
    weights, chosen, again = router(inputs)
    (weights[:, :2] * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    gradient = router.gate.weight.grad.abs().sum(1)
    print("RESULT" + json.dumps({
        "own": own[0].tolist(), "given": given[0].tolist(), "chosen": chosen[0].tolist(),
        "scores": scores[0].tolist(), "again": again[0].tolist(), "weights": weights[0].tolist(),
        "changed": router.changed.tolist(), "gradient": gradient.tolist(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
