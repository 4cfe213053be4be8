"""Blocks to batches: the core copies all columns at once, without the GIL."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from monolith.data.batch import Batch
from monolith.data.columns import Columns
from monolith.data.stages import Part
from monolith.ops import RaggedColumns
from monolith.ops.compiled import load_native
from monolith.ops.ragged_columns import ColumnNames

if TYPE_CHECKING:
    import monolith._native as _native


class BatchMaker:
    """Makes batches of blocks with these columns, in two steps.

        step       on a thread that reads ahead           gives
        copy       asks the core, which copies on a       ids, row splits, floats and times,
                   thread of its own; no tensors          each in one memory
        batch      waits for that, on the thread          tensors on them: `RaggedColumns`,
                   that takes the batch                   one for each other column

    Calls of torch give the GIL away and wait for it, up to 5 ms each where another thread is busy
    in Python: so they are left to the thread that takes the batch.

    A batch has memory of its own, but features of one id each share row splits with other batches.
    Used by one thread, or by one for each step.

    Args:
        columns: of the batch; a block may have more.
        is_ahead: whether the core copies on its own thread; else `copy` does it.
    """

    def __init__(self, columns: Columns, *, is_ahead: bool = False) -> None:
        ids = [each.name for each in columns.id_columns]
        self._dense = [each.name for each in columns.dense_columns]
        self._labels = [each.name for each in columns.label_columns]
        self._weight, self._time = columns.weight, columns.time
        weights = [] if columns.weight is None else [columns.weight]
        self._floats = list(dict.fromkeys([*self._dense, *self._labels, *weights]))
        times = [] if columns.time is None else [columns.time]
        self._ids = ColumnNames({name: number for number, name in enumerate(ids)})
        self._native = load_native()
        self._names = self._native.BlockNames(ids, self._floats, times)
        self._ahead = self._native.CopyAhead() if is_ahead else None
        self._opened: dict[int, tuple[pa.RecordBatch, _native.ArrowBlock]] = {}
        self._one_each = torch.arange(1, device="cpu")

    def copy(self, parts: Sequence[Part]) -> "_native.BlockCopy":
        """Begin to copy the samples of a batch.

        Raises:
            ValueError: a function given to `map` has lost a column, or made no numbers of it.
        """
        # Those of the last batch are kept: many batches are made of one block.
        self._opened = {
            id(block): self._opened.get(id(block)) or (block, self._open(block))
            for block, _, _ in parts
        }
        rows = [(self._opened[id(block)][1], first, count) for block, first, count in parts]
        copied: _native.BlockCopy = self._native.BlockCopy(rows, self._ahead)
        return copied

    def _open(self, block: pa.RecordBatch) -> "_native.ArrowBlock":
        opened: _native.ArrowBlock
        try:
            opened = self._native.ArrowBlock(self._names, *block.__arrow_c_array__())
        except ValueError:  # of a function that has made numbers of another type, perhaps
            cast = self._cast(block)
            if cast.schema == block.schema:
                raise
            opened = self._native.ArrowBlock(self._names, *cast.__arrow_c_array__())
        return opened

    def _cast(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """The block with ids as int64 and other numbers as float32."""
        kinds = dict.fromkeys(self._floats, pa.float32()) | dict.fromkeys(
            self._ids.places, pa.int64()
        )
        fields = [
            field.with_type(_cast_type(field.type, kinds[field.name]))
            if field.name in kinds
            else field
            for field in block.schema
        ]
        return block.cast(pa.schema(fields), safe=False)

    def batch(self, copied: "_native.BlockCopy") -> Batch:
        """The batch on the memory of a copy; waits for it."""
        num_rows, widths = copied.num_rows, copied.widths
        tensors: Any = copied.tensors()
        ids, splits, floats, times = tensors
        sizes = [num_rows * (width or 1) for width in widths]
        parts = {
            name: part.view(num_rows, width) if width else part
            for name, width, part in zip(
                self._floats, widths, floats.split_with_sizes(sizes), strict=True
            )
        }
        splits = self._splits(num_rows) if copied.is_one_each else splits.view(-1, num_rows + 1)
        return Batch(
            RaggedColumns._unchecked(self._ids, ids, splits),  # right by construction
            {name: parts[name] for name in self._dense},
            {name: parts[name] for name in self._labels},
            None if self._weight is None else parts[self._weight],
            None if self._time is None else times,
        )

    def _splits(self, num_rows: int) -> torch.Tensor:
        """Of one id in each row, (features, num_rows + 1)."""
        if len(self._one_each) != num_rows + 1:
            self._one_each = torch.arange(num_rows + 1, device="cpu")
        return self._one_each.expand(len(self._ids.places), -1)

    def make(self, block: pa.RecordBatch) -> Batch:
        """The batch of a block."""
        return self.batch(self.copy([(block, 0, block.num_rows)]))


def _cast_type(given: pa.DataType, kind: pa.DataType) -> pa.DataType:
    """The type with this kind of numbers; the same if it has others than numbers."""
    if pa.types.is_fixed_size_list(given) and kind == pa.float32():
        return pa.list_(_cast_type(given.value_type, kind), given.list_size)
    if (pa.types.is_list(given) or pa.types.is_large_list(given)) and kind == pa.int64():
        return pa.list_(_cast_type(given.value_type, kind))
    is_whole = pa.types.is_integer(given)
    if kind == pa.float32():
        is_number = is_whole or pa.types.is_floating(given) or pa.types.is_boolean(given)
        return kind if is_number else given
    return kind if is_whole else given
