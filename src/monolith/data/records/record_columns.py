"""Columns of decoded records: what the core is asked for, and Arrow arrays on what it gives."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from monolith.data.columns import Columns, DenseColumn, IdColumn, Label
from monolith.ops.compiled import load_native

# Numbers of `PbType` of the reference system; tf.train.Example has none there.
RECORD_TYPES = MappingProxyType({"instance": 1, "example_batch": 2, "example": 3, "tf_example": 4})
_WEIGHT_FILL = 1.0


@dataclass(frozen=True, slots=True)
class _Spec:
    """One column; the fields, in order, are what the core takes."""

    name: str
    is_ids: bool
    width: int = 1
    fill: float | None = None
    takes_first: bool = False
    is_one_each: bool = False

    def row(self) -> tuple[Any, ...]:
        return (
            self.name,
            self.is_ids,
            self.width,
            self.fill,
            self.takes_first,
            self.is_one_each,
        )


class RecordColumns:
    """The columns of a source that records have to give.

    Raises:
        ValueError: one column of the records is wanted in two ways.
    """

    def __init__(self, columns: Columns) -> None:
        specs: dict[str, _Spec] = {}
        wanted = [_of_ids(each) for each in columns.id_columns]
        floats = (*columns.dense_columns, *columns.label_columns)
        wanted += [_of_floats(each) for each in floats]
        if columns.weight is not None:
            wanted.append(_Spec(columns.weight, False, fill=_WEIGHT_FILL))
        if columns.time is not None:
            wanted.append(_Spec(columns.time, True, is_one_each=True))
        for spec in wanted:
            if specs.setdefault(spec.name, spec) != spec:
                raise ValueError(
                    f"[data] expected column {spec.name!r} of records in one way, got two: ids or "
                    "numbers, one width, one fill"
                )
        self._specs = list(specs.values())
        self._has_width = {each.column or each.name for each in floats if each.width is not None}

    def decoder(
        self, kind: str, flags: int, *, max_bytes: int, keeps_fid_v1: bool, skips: bool
    ) -> Any:
        """The core's decoder of records of one type."""
        rows = [spec.row() for spec in self._specs]
        return load_native().RecordDecoder(
            rows, RECORD_TYPES[kind], flags, max_bytes, keeps_fid_v1, skips
        )

    def rows(self, block: Any) -> pa.RecordBatch:
        """The rows of a block of the core, on its memory; without rows that are bad."""
        num_rows = block.num_rows
        arrays = {
            spec.name: self._array(spec, block, num_rows, *buffers)
            for spec, buffers in zip(self._specs, block.buffers(), strict=True)
        }
        rows = pa.record_batch(arrays) if arrays else pa.record_batch({})
        bad = [row for _, _, row, _, _ in block.bad if row >= 0]
        if not bad:
            return rows
        keep = np.ones(num_rows, np.bool_)
        keep[bad] = False
        return self._single(rows.filter(pa.array(keep)))

    def _array(
        self,
        spec: _Spec,
        block: Any,
        num_rows: int,
        values: int,
        splits: int,
        count: int,
        one: bool,
    ) -> pa.Array:
        if not spec.is_ids:
            flat = _on_memory(pa.float32(), count, values, block)
            if spec.name in self._has_width:
                return pa.FixedSizeListArray.from_arrays(flat, spec.width)
            return flat
        flat = _on_memory(pa.int64(), count, values, block)
        if one:
            return flat
        offsets = _on_memory(pa.int32(), num_rows + 1, splits, block)
        return pa.ListArray.from_arrays(offsets, flat)

    def _single(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Lists of one each as numbers, now that rows with none or many are gone."""
        for spec in self._specs:
            array = rows.column(spec.name)
            if spec.is_one_each and isinstance(array, pa.ListArray):
                at = rows.schema.get_field_index(spec.name)
                rows = rows.set_column(at, spec.name, array.flatten())
        return rows


def _of_ids(column: IdColumn) -> _Spec:
    return _Spec(column.column or column.name, True)


def _of_floats(column: DenseColumn) -> _Spec:
    return _Spec(
        column.column or column.name,
        False,
        column.width or 1,
        column.fill,
        takes_first=isinstance(column, Label),
    )


def _on_memory(kind: pa.DataType, count: int, address: int, owner: Any) -> pa.Array:
    size = count * kind.bit_width // 8
    memory = pa.foreign_buffer(address, size, owner) if size else pa.py_buffer(b"")
    return pa.Array.from_buffers(kind, count, [None, memory])
