"""Lookups that torch can differentiate: backward queues gradients on the table, a step applies.

In eager mode a lookup is a `torch.autograd.Function`, under torch.compile and torch.export the op
`monolith::lookup_bags`; both do the same. Neither changes the table, so a graph may run a lookup
once more or once less (activation checkpointing does) without harm.
"""

from typing import Any, NamedTuple

import torch

from monolith.embedding.anchor_queue import check_eager, queue_once
from monolith.embedding.bags import Bags
from monolith.embedding.gradient_queue import GradientQueue, queue_at

__all__ = ["Reading", "lookup_bags"]


class Reading(NamedTuple):
    """How keys become pooled rows.

    Attributes:
        mode: of the bags.
        missing: what a missing key reads as.
        padding: a key that is left out of its bag.
        is_trained: whether backward queues gradients.
    """

    mode: str
    missing: str
    padding: int | None
    is_trained: bool


def lookup_bags(
    queue: GradientQueue,
    anchor: torch.Tensor,
    keys: torch.Tensor,
    row_splits: torch.Tensor | int,
    weights: torch.Tensor | None,
    reading: Reading,
) -> torch.Tensor:
    """Pooled rows that backward knows about, float32 (num_bags, dim).

    Args:
        queue: of the table.
        anchor: of the queue, as the module has it: while torch traces, a stand-in.
        keys: int64 (num_keys,), contiguous.
        row_splits: int64 (num_bags + 1,); or the number of bags of equally many keys, which may
            have any shape then. While torch traces, a tensor.
        weights: float32 (num_keys,) of the keys in a sum; they get gradients too.
        reading: how.
    """
    mode, missing, padding, is_trained = reading
    if not is_trained:
        anchor = anchor.detach()
    if torch.compiler.is_compiling():
        values, _ = torch.ops.monolith.lookup_bags(
            anchor, keys, row_splits, weights, queue.handle, mode, missing, padding
        )
        assert isinstance(values, torch.Tensor)
        return values
    check_eager(queue, anchor)
    if padding is None and weights is None:
        bags, is_kept = Bags.unchecked(keys, row_splits, mode), None
    else:
        bags, is_kept = _without_padding(keys.reshape(-1), row_splits, weights, mode, padding)
    if torch.is_grad_enabled() and (anchor.requires_grad or _requires_grad(weights)):
        lookup = _Lookup(queue, bags, is_kept, missing)
        found = _LookupBags.apply(anchor, weights, lookup)  # type: ignore[no-untyped-call]
        assert isinstance(found, torch.Tensor)
        return found
    return queue.lookup(bags, missing).values


def _requires_grad(weights: torch.Tensor | None) -> bool:
    return weights is not None and weights.requires_grad


def _without_padding(
    keys: torch.Tensor,
    row_splits: torch.Tensor | int,
    weights: torch.Tensor | None,
    mode: str,
    padding: int | None,
) -> tuple[Bags, torch.Tensor | None]:
    """The bags without the padding key, and which keys are left, bool (num_keys,); None: all."""
    weights = None if weights is None else weights.detach()
    bags = Bags(keys, row_splits, mode, weights)
    if padding is None:
        return bags, None
    is_kept = keys != padding
    num_kept = torch.nn.functional.pad(is_kept.cumsum(0), (1, 0))  # before each key
    weights = None if weights is None else weights[is_kept]
    return Bags(keys[is_kept], num_kept[bags.splits()], mode, weights), is_kept


def _weight_gradients(
    queue: GradientQueue,
    bags: Bags,
    is_kept: torch.Tensor | None,
    gradients: torch.Tensor,
    missing: str,
) -> torch.Tensor:
    """Of every weight, (num_keys,); of a padding key 0."""
    found = queue.table.bag_weight_gradients(bags, gradients, missing=missing, step=queue.step)
    if is_kept is None:
        return found
    return found.new_zeros(len(is_kept)).masked_scatter_(is_kept, found)


class _Lookup(NamedTuple):
    """What `_LookupBags` takes beside the tensors that get gradients; torch handles it as one."""

    queue: GradientQueue
    bags: Bags
    is_kept: torch.Tensor | None
    missing: str


class _LookupBags(torch.autograd.Function):
    """The eager lookup."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, weights: torch.Tensor | None, lookup: _Lookup
    ) -> torch.Tensor:
        """Pooled rows."""
        bags = lookup.bags
        pooled = lookup.queue.lookup(bags, lookup.missing)
        ctx.lookup, ctx.winners = lookup, pooled.winners
        # Saved so that torch notices a change of them, and a backward after the graph was freed.
        splits = bags.row_splits
        ctx.save_for_backward(bags.keys, None if isinstance(splits, int) else splits, bags.weights)
        return pooled.values

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Queues the gradients; the rest is done in a step."""
        return queue_once(_queue_gradients, ctx, gradients)


def _queue_gradients(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    _ = ctx.saved_tensors
    # The caller may use its memory again before the step.
    gradients = gradients.clone(memory_format=torch.contiguous_format)
    queue, bags, is_kept, missing = ctx.lookup
    of_anchor = of_weights = None
    is_anchor_trained, is_weight_trained, _ = ctx.needs_input_grad
    if is_anchor_trained:
        of_anchor = queue.push(bags, gradients, ctx.winners)
    if is_weight_trained:
        of_weights = _weight_gradients(queue, bags, is_kept, gradients, missing)
    return of_anchor, of_weights, None


# The same as ops. Their arguments are tensors and plain values; a table is named by its handle.


@torch.library.custom_op(
    "monolith::lookup_bags",
    mutates_args=(),
    schema="(Tensor anchor, Tensor keys, Tensor row_splits, Tensor? weights, int handle, str mode, "
    "str missing, int? padding) -> (Tensor, Tensor)",
)
def _lookup_op(
    anchor: torch.Tensor,
    keys: torch.Tensor,
    row_splits: torch.Tensor,
    weights: torch.Tensor | None,
    handle: int,
    mode: str,
    missing: str,
    padding: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    queue = queue_at(handle)
    bags, _ = _without_padding(keys, row_splits, weights, mode, padding)
    pooled = queue.lookup(bags, missing)
    winners = pooled.winners
    return pooled.values, _no_winners() if winners is None else winners


@_lookup_op.register_fake
def _(
    anchor: torch.Tensor, keys: Any, row_splits: torch.Tensor, weights: Any, *options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    handle, mode, *_ = options
    values = anchor.new_empty((row_splits.shape[0] - 1, queue_at(handle).table.dim))
    return values, values.new_empty(values.shape if mode == "max" else (0,), dtype=torch.int32)


@torch.library.custom_op(
    "monolith::push_gradient",
    mutates_args=(),
    schema="(Tensor gradients, Tensor keys, Tensor row_splits, Tensor? weights, Tensor winners, "
    "int handle, str mode, int? padding, int number) -> Tensor",
)
def _push_op(
    gradients: torch.Tensor,
    keys: torch.Tensor,
    row_splits: torch.Tensor,
    weights: torch.Tensor | None,
    winners: torch.Tensor,
    handle: int,
    mode: str,
    padding: int | None,
    number: int,
) -> torch.Tensor:
    bags, _ = _without_padding(keys, row_splits, weights, mode, padding)
    # The graph uses the memory of its tensors again.
    gradients, won = gradients.clone(memory_format=torch.contiguous_format), None
    if mode == "max":
        won = winners.clone()
    return queue_at(handle).push(bags, gradients, won)


@_push_op.register_fake
def _(gradients: torch.Tensor, *_: Any) -> torch.Tensor:
    return gradients.new_empty(1)


@torch.library.custom_op(
    "monolith::bag_weight_gradients",
    mutates_args=(),
    schema="(Tensor gradients, Tensor keys, Tensor row_splits, Tensor weights, int handle, "
    "str missing, int? padding) -> Tensor",
)
def _weight_gradients_op(
    gradients: torch.Tensor,
    keys: torch.Tensor,
    row_splits: torch.Tensor,
    weights: torch.Tensor,
    handle: int,
    missing: str,
    padding: int | None,
) -> torch.Tensor:
    bags, is_kept = _without_padding(keys, row_splits, weights, "sum", padding)
    return _weight_gradients(queue_at(handle), bags, is_kept, gradients.contiguous(), missing)


@_weight_gradients_op.register_fake
def _(gradients: Any, keys: Any, row_splits: Any, weights: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(weights)


def _no_winners() -> torch.Tensor:
    return torch.empty(0, dtype=torch.int32, device="cpu")


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, keys, row_splits, weights, ctx.handle, ctx.mode, ctx.missing, ctx.padding = inputs
    ctx.save_for_backward(keys, row_splits, weights, output[1])


def _backward(
    ctx: Any, gradients: torch.Tensor, _: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    keys, row_splits, weights, winners = ctx.saved_tensors
    ops, of_anchor, of_weights = torch.ops.monolith, None, None
    if ctx.needs_input_grad[0]:
        # Equal calls in a graph are merged into one. The number, drawn when the graph is made,
        # keeps the pushes of two equal lookups apart.
        queue = queue_at(ctx.handle)
        queue.num_traced += 1
        of_anchor = ops.push_gradient(
            gradients,
            keys,
            row_splits,
            weights,
            winners,
            ctx.handle,
            ctx.mode,
            ctx.padding,
            queue.num_traced,
        )
    if ctx.needs_input_grad[3]:
        of_weights = ops.bag_weight_gradients(
            gradients, keys, row_splits, weights, ctx.handle, ctx.missing, ctx.padding
        )
    return of_anchor, None, None, of_weights, None, None, None, None


_lookup_op.register_autograd(_backward, setup_context=_save)
