"""The row of every value of a ragged tensor."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from monolith.ops.native import load_native
from monolith.ops.ragged import Ragged

__all__ = ["fused_value_rowids"]


def fused_value_rowids(rt: Ragged) -> torch.Tensor:
    """The row of each value, int64 (num_values,); computed once per object and kept.

    Under `torch.compile` it is computed in the graph and not kept. Safe from any thread.

    Raises:
        ValueError: the argument is not `Ragged`.

    Example:
        >>> fused_value_rowids(Ragged.from_lists([[], [1], [2, 3]]))
        tensor([1, 2, 2])
    """
    if not isinstance(rt, Ragged):
        raise ValueError("rt must be RaggedTensor")
    if torch.compiler.is_compiling():
        rowids = torch.ops.monolith.fused_value_rowids(rt.row_splits, rt.values.shape[0])
        assert isinstance(rowids, torch.Tensor)
        return rowids
    kept = rt.monolith_fused_value_rowids
    if kept is None:
        kept = _value_rowids(rt.row_splits, rt.values.shape[0])
        object.__setattr__(rt, "monolith_fused_value_rowids", kept)
    return kept


def _value_rowids(row_splits: torch.Tensor, num_values: int) -> torch.Tensor:
    if row_splits.device.type != "cpu" or isinstance(row_splits, FakeTensor):
        # Searches; repeat_interleave would be as fast, but waits for the device to add up lengths.
        places = torch.arange(num_values, device=row_splits.device)
        return torch.searchsorted(row_splits, places, right=True) - 1
    splits = row_splits.contiguous()
    rowids = torch.empty(num_values, dtype=torch.int64, device="cpu")
    load_native().fused_value_rowids(
        splits.data_ptr(), splits.shape[0], rowids.data_ptr(), num_values
    )
    return rowids


@torch.library.custom_op(
    "monolith::fused_value_rowids",
    mutates_args=(),
    schema="(Tensor row_splits, SymInt num_values) -> Tensor",
)
def _rowids_op(row_splits: torch.Tensor, num_values: int) -> torch.Tensor:
    return _value_rowids(row_splits, num_values)


@_rowids_op.register_fake
def _(row_splits: torch.Tensor, num_values: int) -> torch.Tensor:
    return row_splits.new_empty(num_values)
