"""Conversion of blocks to batches: the core copies all columns in one call, without the GIL."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from monolith.data.batch import Batch, TensorColumns
from monolith.data.columns import Columns
from monolith.data.stages import Part
from monolith.ops import RaggedColumns
from monolith.ops.compiled import load_native
from monolith.ops.ragged_columns import ColumnNames

if TYPE_CHECKING:
    import monolith._native as _native


EVENT_TIME = "__event_time__"
"""Column of a block of a stream: event time of each sample, in milliseconds since 1970."""


class BatchMaker:
    """Converts blocks with the given columns to batches, in two steps.

        step       thread                            result
        copy       reads ahead; asks the core,       ids, row splits, floats and times,
                   whose own thread copies           each in one memory, no tensors
        batch      takes the batch; waits for        tensors on this memory: a `RaggedColumns`,
                   the core                          and one tensor for each other column

    Calls of torch release the GIL and wait for it again, up to 5 ms each while another thread runs
    Python code. So the thread that takes the batch creates the tensors.

    A batch has memory of its own, but features with one id per sample share row splits with other
    batches. Used by one thread, or by one thread for each step.

    Args:
        columns: columns of the batch; a block may have more.
        is_ahead: whether the core copies on its own thread; if not, `copy` copies.
        left_out: columns of the source that nothing reads; a batch refuses their names.
        has_event_times: whether batches have event times, as those of streams do.
    """

    def __init__(
        self,
        columns: Columns,
        *,
        is_ahead: bool = False,
        left_out: frozenset[str] = frozenset(),
        has_event_times: bool = False,
    ) -> None:
        ids = [column.name for column in columns.id_columns]
        self._dense = [column.name for column in columns.dense_columns]
        self._labels = [column.name for column in columns.label_columns]
        self._weight, self._time = columns.weight, columns.time
        weights = [] if columns.weight is None else [columns.weight]
        self._floats = list(dict.fromkeys([*self._dense, *self._labels, *weights]))
        times = [] if columns.time is None else [columns.time]
        self._left_out = left_out.difference(columns.names())
        places = {name: number for number, name in enumerate(ids)}
        self._ids = ColumnNames(places, self._left_out)
        self._native = load_native()
        self._names = self._native.BlockNames(ids, self._floats, times)
        self._ahead = self._native.CopyAhead() if is_ahead else None
        self._opened: dict[int, tuple[pa.RecordBatch, _native.ArrowBlock]] = {}
        self._one_each = torch.arange(1, device="cpu")
        self._has_event_times = has_event_times

    def event_time(self, parts: Sequence[Part]) -> float | None:
        """Return the newest event time of the samples of a batch; None without event times."""
        if not self._has_event_times:
            return None
        times = [self._newest(block.slice(*rows)) for block, *rows in parts]
        return max((time for time in times if time is not None), default=None)

    def _newest(self, rows: pa.RecordBatch) -> float | None:
        """Return the newest event time of rows: as their source says it, or by their time."""
        for name, unit in ((EVENT_TIME, 1e3), (self._time, 1.0)):
            at = -1 if name is None else rows.schema.get_field_index(name)
            if at >= 0:
                newest = pc.max(rows.column(at)).as_py()
                return None if newest is None else newest / unit
        return None

    def copy(self, parts: Sequence[Part]) -> "_native.BlockCopy":
        """Begin to copy the samples of a batch.

        Raises:
            ValueError: a function of `map` removed a column, or changed the type of its numbers.
        """
        # Keep the opened blocks of the last batch, because one block usually gives many batches.
        self._opened = {
            id(block): self._opened.get(id(block)) or (block, self._open(block))
            for block, _, _ in parts
        }
        rows = [(self._opened[id(block)][1], first, count) for block, first, count in parts]
        copy: _native.BlockCopy = self._native.BlockCopy(rows, self._ahead)
        return copy

    def _open(self, block: pa.RecordBatch) -> "_native.ArrowBlock":
        arrow_block: _native.ArrowBlock
        try:
            arrow_block = self._native.ArrowBlock(self._names, *block.__arrow_c_array__())
        except ValueError:  # a function of `map` may have changed the type of numbers
            cast = self._cast(block)
            if cast.schema == block.schema:
                raise
            arrow_block = self._native.ArrowBlock(self._names, *cast.__arrow_c_array__())
        return arrow_block

    def _cast(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the block with ids as int64 and other numbers as float32."""
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

    def batch(self, copy: "_native.BlockCopy", event_time: float | None = None) -> Batch:
        """Return the batch on the memory of a copy; waits for the copy."""
        num_rows, widths = copy.num_rows, copy.widths
        tensors: Any = copy.tensors()
        ids, splits, floats, times = tensors
        sizes = [num_rows * (width or 1) for width in widths]
        parts = {
            name: part.view(num_rows, width) if width else part
            for name, width, part in zip(
                self._floats, widths, floats.split_with_sizes(sizes), strict=True
            )
        }
        splits = self._splits(num_rows) if copy.is_one_each else splits.view(-1, num_rows + 1)
        return Batch(
            RaggedColumns._unchecked(self._ids, ids, splits),  # valid by construction
            self._tensors(self._dense, parts),
            self._tensors(self._labels, parts),
            None if self._weight is None else parts[self._weight],
            None if self._time is None else times,
            event_time,
        )

    def _tensors(
        self, names: Sequence[str], parts: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        tensors = {name: parts[name] for name in names}
        return TensorColumns(tensors, self._left_out) if self._left_out else tensors

    def _splits(self, num_rows: int) -> torch.Tensor:
        """Return the row splits of features with one id per sample, (features, num_rows + 1)."""
        if len(self._one_each) != num_rows + 1:
            self._one_each = torch.arange(num_rows + 1, device="cpu")
        return self._one_each.expand(len(self._ids.places), -1)

    def make(self, block: pa.RecordBatch) -> Batch:
        """Return the batch of a block."""
        return self.batch(self.copy([(block, 0, block.num_rows)]))


def _cast_type(source: pa.DataType, kind: pa.DataType) -> pa.DataType:
    """Return the type with the given kind of numbers; a type without numbers stays as it is."""
    if pa.types.is_fixed_size_list(source) and kind == pa.float32():
        return pa.list_(_cast_type(source.value_type, kind), source.list_size)
    if (pa.types.is_list(source) or pa.types.is_large_list(source)) and kind == pa.int64():
        return pa.list_(_cast_type(source.value_type, kind))
    is_whole = pa.types.is_integer(source)
    if kind == pa.float32():
        is_number = is_whole or pa.types.is_floating(source) or pa.types.is_boolean(source)
        return kind if is_number else source
    return kind if is_whole else source
