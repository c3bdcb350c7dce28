"""How tokens reach their experts and come back, with gathers alone.

    x [T, D] --spread--> rows by expert [N, D] --experts--> rows [N, D] --weighted sum--> [T, D]

N = T * K, with K experts per token. torchtitan's dispatchers add rows up with scatters, which need
atomics, whose order changes from run to run, or a sort. Here forward and backward read rows by an
index and by its inverse, so results do not depend on the order of threads. The sum of a token's K
rows is in float32.

With `ep`, torchtitan sends each token once per expert. If there are fewer ranks than experts per
token, nearly every rank needs nearly every token. Then it is cheaper to gather all tokens on all
ranks, and to reduce-scatter the sums: (ep - 1) * T * D values are sent for K * T * D * (ep - 1) /
ep. Ranks must have equally many tokens for it (`same_shape` of packing).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor

from forgedsl.sizes.experts import gathers_tokens


@dataclass(frozen=True, slots=True)
class Order:
    """Order of the rows of T tokens with K experts each."""

    pairs: Tensor
    """int64 [N]: row `i` is pair `pairs[i]`, of token `pairs[i] // K`"""
    rows: Tensor
    """int64 [T * K]: the row of each pair"""
    top_k: int
    mine: Tensor | None = None
    """bool [T * K]: the pairs that have a row; None: all. N is then one more than there are rows,
    so that it is never 0; the last row counts for nothing."""

    def row(self, values: Tensor, k: int, wide: torch.dtype) -> Tensor:
        """Return `values` [N, D] of the k-th expert of each token, [T, D]; 0 if it has no row."""
        found = values[self.rows.view(-1, self.top_k)[:, k]].to(wide)
        if self.mine is None:
            return found
        return torch.where(self.mine.view(-1, self.top_k)[:, k, None], found, 0.0)


def inverse(order: Tensor) -> Tensor:
    """Return the inverse of a permutation, int64 [N]."""
    return torch.empty_like(order).scatter_(
        0, order, torch.arange(order.shape[0], device=order.device)
    )


@torch.library.custom_op("forgedsl::order_by", mutates_args=())
def order_by(keys: Tensor) -> Tensor:
    """Return the order that sorts `keys` [N], int64 [N]; equal keys keep their order.

    An operation of its own, since Inductor compiles a layer with a sort twice, for fewer than
    32,767 keys and for more, although it calls the same sort in both.
    """
    return torch.argsort(keys, stable=True)


@order_by.register_fake
def _(keys: Tensor) -> Tensor:
    return torch.empty_like(keys, dtype=torch.int64)


def permute(rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """Return `rows[order]`, [N, D]. `back` is the inverse of the permutation `order`, [N]."""
    found: Tensor = _Permute.apply(rows, order, back)  # type: ignore[no-untyped-call]
    return found


def spread(x: Tensor, order: Order) -> Tensor:
    """Return the rows [N, D] of tokens `x`, [T, D]."""
    found: Tensor = _Spread.apply(  # type: ignore[no-untyped-call]
        x, order.pairs, order.rows, order.mine, order.top_k
    )
    return found


def weighted_sum(rows: Tensor, weights: Tensor, order: Order) -> Tensor:
    """Return the sum of each token's rows by weight, [T, D], from rows [N, D] and weights [T * K].
    Products and sums are in float32, or in float64 for float64."""
    found: Tensor = _WeightedSum.apply(  # type: ignore[no-untyped-call]
        rows, weights, order.pairs, order.rows, order.mine, order.top_k
    )
    return found


def _wide(value: Tensor) -> torch.dtype:
    return torch.promote_types(value.dtype, torch.float32)


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (back,) = ctx.saved_tensors
        return grads[0][back], None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, pairs: Tensor, rows: Tensor, mine: Tensor | None, top_k: int
    ) -> Tensor:
        ctx.save_for_backward(pairs, rows, mine)
        ctx.top_k = top_k
        return x[pairs // top_k]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        pairs, rows, mine = ctx.saved_tensors
        (grad,) = grads
        order, wide = Order(pairs, rows, ctx.top_k, mine), _wide(grad)
        total = order.row(grad, 0, wide)
        for k in range(1, ctx.top_k):
            total = total + order.row(grad, k, wide)
        return total.to(grad.dtype), None, None, None, None


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weights: Tensor, pairs: Tensor, rows: Tensor,
        mine: Tensor | None, top_k: int,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(values, weights, pairs, rows, mine)
        ctx.top_k = top_k
        order, wide = Order(pairs, rows, top_k, mine), _wide(values)
        of_token = weights.to(wide).view(-1, top_k)
        total = order.row(values, 0, wide) * of_token[:, :1]
        for k in range(1, top_k):
            total = total + order.row(values, k, wide) * of_token[:, k, None]
        return total.to(values.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        values, weights, pairs, rows, mine = ctx.saved_tensors
        wide = _wide(values)
        grad = grads[0][pairs // ctx.top_k].to(wide)
        of_values = (grad * weights[pairs].to(wide).unsqueeze(-1)).to(values.dtype)
        of_weights = (grad * values.to(wide)).sum(-1)[rows]
        if mine is not None:
            of_weights = torch.where(mine, of_weights, 0.0)
        return of_values, of_weights.to(weights.dtype), None, None, None, None


def local_order(ids: Tensor, first: int, count: int) -> tuple[Order, Tensor]:
    """Return the order of the rows of experts `first` to `first + count`, and how many rows each
    has, int64 [count]. `ids`: the experts of each token, int64 [T, K]."""
    top_k, num_pairs = ids.shape[1], ids.numel()
    own = (ids - first).reshape(-1)
    mine = (own >= 0) & (own < count)
    own = torch.where(mine, own, count)
    counts = torch.zeros(count + 1, dtype=torch.int64, device=ids.device)
    counts = counts.scatter_add(0, own, torch.ones_like(own))[:count]
    by_expert = order_by(own)
    num_rows = int(counts.sum().item())  # waits for the device
    torch._check(num_rows >= 0)  # type: ignore[no-untyped-call]
    torch._check(num_rows <= num_pairs)  # type: ignore[no-untyped-call]
    pairs = torch.cat([by_expert, by_expert.new_zeros(1)]).narrow(0, 0, num_rows + 1)
    rows = inverse(by_expert).clamp(max=num_rows)
    return Order(pairs, rows, top_k, mine), counts


@dataclass(frozen=True, slots=True)
class Gathered:
    """Tokens of all ranks, of which this rank has the rows of its experts."""

    order: Order
    weights: Tensor
    mesh: Any

    def sums(self, rows: Tensor) -> Tensor:
        """Return the sum of each of this rank's tokens, [T, D], over the experts of all ranks."""
        own = weighted_sum(rows, self.weights, self.order)
        found: Tensor = collectives.reduce_scatter_single_autograd(own, "sum", 0, self.mesh)
        return found


def gathered(
    x: Tensor, weights: Tensor, ids: Tensor, mesh: Any, num_experts: int
) -> tuple[Tensor, Tensor, Gathered]:
    """Return the rows of this rank's experts from the tokens of all ranks, and how many rows each
    of these experts has. `x`: [T, D], `weights` and `ids`: [T, K], of this rank's tokens."""
    every = collectives.all_gather_single_autograd(x, 0, mesh)
    of_pairs = collectives.all_gather_single_autograd(weights, 0, mesh)
    count = num_experts // mesh.size()
    chosen = collectives.all_gather_single(ids, 0, mesh)
    order, per_expert = local_order(chosen, mesh.get_local_rank() * count, count)
    return spread(every, order), per_expert, Gathered(order, of_pairs.reshape(-1), mesh)


@cache
def dispatcher() -> Any:
    """Make the class; call after `select_device`, since this imports torchtitan."""
    from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher

    class GatheringDispatcher(AllToAllTokenDispatcher):
        """torchtitan's dispatcher, whose sums are gathers. Where torchtitan's metadata has the
        token and the weight of each row, it has the pair of each row, and the weight of each pair.
        """

        @dataclass(kw_only=True, slots=True)
        class Config(AllToAllTokenDispatcher.Config):
            pass

        @property
        def gathers(self) -> bool:
            """True if every rank gets all tokens; needs as many tokens on each."""
            return self.ep_mesh is not None and gathers_tokens(self.top_k, self.ep_mesh.size())

        def dispatch(self, x: Tensor, weights: Tensor, ids: Tensor, counts: Tensor) -> Any:
            if self.gathers:
                return gathered(x, weights, ids, self.ep_mesh, self.num_experts)
            return super().dispatch(x, weights, ids, counts)

        def combine(self, rows: Tensor, metadata: Any, x: Tensor) -> Tensor:
            if isinstance(metadata, Gathered):
                return metadata.sums(rows)
            if self.ep_mesh is not None:
                rows = self._unpermute(rows, metadata.input_shape, metadata.permuted_indices)
                rows = self._combine_token_exchange(
                    rows, self.ep_mesh.get_group(), metadata.input_splits, metadata.output_splits
                )
            pairs = metadata.token_indices_experts_sorted_N
            order = Order(pairs, inverse(pairs), self.top_k)
            return weighted_sum(rows, metadata.topk_scores_experts_sorted_N, order)

        def _local_reorder(self, x: Tensor, weights: Tensor, ids: Tensor) -> Any:
            pairs = order_by(ids.reshape(-1))
            order = Order(pairs, inverse(pairs), self.top_k)
            return spread(x, order), pairs, weights.reshape(-1)

        def _permute(self, rows: Tensor, counts: Tensor) -> Any:
            """Order rows that came from other ranks by expert."""
            with torch.no_grad():  # of torchtitan's results only the order is used
                _, _, order, per_expert = super()._permute(rows[:, :1], counts)
            return rows.shape, permute(rows, order, inverse(order)), order, per_expert

        def _unpermute(self, rows: Tensor, shape: Any, order: Tensor) -> Tensor:
            return permute(rows, inverse(order), order)

    return GatheringDispatcher
