"""The lookup of all features of a batch as ops, for torch.compile and torch.export.

Arguments of ops are tensors and plain values, so backward looks the ids up once more, to know what
the gradients are of; the rows that it reads are not used.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monolith.features.gradients import FeatureQueue, feature_queue_at
from monolith.ops import Ragged


def lookup_features(
    queue: FeatureQueue,
    anchor: torch.Tensor,
    ids: Mapping[str, Ragged],
    dense: torch.Tensor | None,
    missing: str,
) -> torch.Tensor:
    """`FeatureBags.lookup` while torch traces.

    Args:
        queue: of the tables.
        anchor: of the queue, as the module has it: while torch traces, a stand-in.
        ids: of every feature.
        dense: float32 (batch, n), put behind the columns of the features; or None.
        missing: what an id without a row reads as.
    """
    given = [ids[feature.name] for feature in queue.engine.features]
    values = [ragged.values for ragged in given]
    splits = [ragged.row_splits for ragged in given]
    joined = torch.ops.monolith.lookup_features(anchor, values, splits, queue.handle, missing)
    assert isinstance(joined, torch.Tensor)
    return joined if dense is None else torch.cat([joined, dense], 1)


def _ids_of(
    queue: FeatureQueue, values: Sequence[torch.Tensor], row_splits: Sequence[torch.Tensor]
) -> dict[str, Ragged]:
    names = [feature.name for feature in queue.engine.features]
    pairs = zip(values, row_splits, strict=True)
    return {name: Ragged(*pair) for name, pair in zip(names, pairs, strict=True)}


@torch.library.custom_op(
    "monolith::lookup_features",
    mutates_args=(),
    schema="(Tensor anchor, Tensor[] values, Tensor[] row_splits, int handle, str missing) "
    "-> Tensor",
)
def _lookup_op(
    anchor: torch.Tensor,
    values: Sequence[torch.Tensor],
    row_splits: Sequence[torch.Tensor],
    handle: int,
    missing: str,
) -> torch.Tensor:
    queue = feature_queue_at(handle)
    return queue.engine.lookup(_ids_of(queue, values, row_splits), missing)[0]


@_lookup_op.register_fake
def _(
    anchor: torch.Tensor, values: Any, row_splits: Sequence[torch.Tensor], handle: int, missing: str
) -> torch.Tensor:
    width = feature_queue_at(handle).engine.width
    return anchor.new_empty((row_splits[0].shape[0] - 1, width))


@torch.library.custom_op(
    "monolith::push_feature_gradients",
    mutates_args=(),
    schema="(Tensor gradients, Tensor[] values, Tensor[] row_splits, int handle, int number) "
    "-> Tensor",
)
def _push_op(
    gradients: torch.Tensor,
    values: Sequence[torch.Tensor],
    row_splits: Sequence[torch.Tensor],
    handle: int,
    number: int,
) -> torch.Tensor:
    queue = feature_queue_at(handle)
    batch = queue.engine.lookup(_ids_of(queue, values, row_splits), "zeros")[1]
    # The graph uses the memory of its tensors again.
    return queue.push(batch, gradients.clone(memory_format=torch.contiguous_format))


@_push_op.register_fake
def _(gradients: torch.Tensor, *_: Any) -> torch.Tensor:
    return gradients.new_empty(1)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, values, row_splits, ctx.handle, _ = inputs
    ctx.save_for_backward(*values, *row_splits)


def _backward(ctx: Any, gradients: torch.Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    middle = len(saved) // 2
    values, row_splits = list(saved[:middle]), list(saved[middle:])
    of_anchor = None
    if ctx.needs_input_grad[0]:
        # As of `monolith::push_gradient`: the number keeps equal pushes apart.
        queue = feature_queue_at(ctx.handle)
        queue.num_traced += 1
        of_anchor = torch.ops.monolith.push_feature_gradients(
            gradients, values, row_splits, ctx.handle, queue.num_traced
        )
    nothing = [None] * middle
    return of_anchor, nothing, nothing, None, None


_lookup_op.register_autograd(_backward, setup_context=_save)
