"""Blocks to batches: all columns are copied by one call of the core, without the GIL."""

import pyarrow as pa
import torch

from monolith.data.batch import Batch
from monolith.data.columns import Columns
from monolith.ops import RaggedColumns
from monolith.ops.native import load_native
from monolith.ops.ragged_columns import ColumnNames

__all__ = ["BatchMaker"]

_CPU = torch.device("cpu")


class BatchMaker:
    """Makes batches of blocks with these columns.

        memory        of a batch                  tensors on it
        ids, splits   all id columns              `RaggedColumns`
        floats        dense, labels, weight       one for each column
        times         time                        one

    A batch has memory of its own, which the maker does not keep; but features of one id each share
    their row splits with those of other batches. Used by one thread.

    Args:
        columns: of the batch; a block may have more.
    """

    def __init__(self, columns: Columns) -> None:
        ids = [each.name for each in columns.id_columns]
        self._dense = [each.name for each in columns.dense_columns]
        self._labels = [each.name for each in columns.label_columns]
        self._weight, self._time = columns.weight, columns.time
        weights = [] if columns.weight is None else [columns.weight]
        self._floats = list(dict.fromkeys([*self._dense, *self._labels, *weights]))
        times = [] if columns.time is None else [columns.time]
        self._ids = ColumnNames({name: number for number, name in enumerate(ids)})
        self._open = load_native().ArrowBlock
        self._names = load_native().BlockNames(ids, self._floats, times)
        self._one_each = torch.arange(1, device=_CPU)

    def make(self, block: pa.RecordBatch) -> Batch:
        """Copy a block to tensors.

        Raises:
            ValueError: a function given to `map` has lost a column, or changed its type.
        """
        opened = self._open(self._names, *block.__arrow_c_array__())
        num_rows, widths = opened.num_rows, opened.widths
        ids = torch.empty(opened.num_ids, dtype=torch.int64, device=_CPU)
        splits = self._splits(num_rows, opened.is_one_each)
        sizes = [num_rows * (width or 1) for width in widths]
        floats = torch.empty(sum(sizes), dtype=torch.float32, device=_CPU)
        num_times = 0 if self._time is None else num_rows
        times = torch.empty(num_times, dtype=torch.int64, device=_CPU)
        filled = 0 if opened.is_one_each else splits.data_ptr()
        opened.copy(ids.data_ptr(), filled, floats.data_ptr(), times.data_ptr())
        parts = {
            name: part.view(num_rows, width) if width else part
            for name, width, part in zip(
                self._floats, widths, floats.split_with_sizes(sizes), strict=True
            )
        }
        return Batch(
            RaggedColumns._unchecked(self._ids, ids, splits),  # right by construction
            {name: parts[name] for name in self._dense},
            {name: parts[name] for name in self._labels},
            None if self._weight is None else parts[self._weight],
            None if self._time is None else times,
        )

    def _splits(self, num_rows: int, is_one_each: bool) -> torch.Tensor:
        """(features, num_rows + 1); to be filled, unless every row has one id."""
        num_columns = len(self._ids.places)
        if not is_one_each:
            return torch.empty(num_columns, num_rows + 1, dtype=torch.int64, device=_CPU)
        if len(self._one_each) != num_rows + 1:
            self._one_each = torch.arange(num_rows + 1, device=_CPU)
        return self._one_each.expand(num_columns, -1)
