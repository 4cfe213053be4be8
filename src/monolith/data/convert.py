"""Conversion of blocks of a source to the form that the stages of a pipeline use.

    column    of the source                                          of a block
    ids       integers, strings, lists of them, dictionaries         int64, or list<int64>
    dense     numbers, booleans, lists of one width                  float32, or lists of that width
    label     the same                                               the same
    weight    numbers                                                float32
    time      integers, or timestamps                                int64, seconds

A block has no missing values: all checks are here, where file and position are known.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from monolith.data.columns import Columns, DenseColumn, IdColumn, Label
from monolith.data.hashing import hash_strings
from monolith.errors import DataLossError

_Mask = npt.NDArray[np.bool_]
_FID_BITS = 48
_INT64_LISTS = pa.list_(pa.int64())
_ListArray = (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)


@dataclass(frozen=True, slots=True)
class Origin:
    """Position of the first sample of some columns."""

    source: str
    sample: int  # number in the source; 0 if `byte` is given
    byte: int | None = None  # position of the block in the file

    def __str__(self) -> str:
        return f"[data] {self.source!r}"

    def at(self, row: int) -> str:
        """Return the description of a sample."""
        block = "" if self.byte is None else f" of the block at byte {self.byte}"
        return f"[data] {self.source!r}, sample {self.sample + row}{block}:"


@dataclass(slots=True)
class BadSamples:
    """Whether samples that break a rule are skipped, and the number of skipped samples."""

    skips: bool = False
    counts: dict[str, int] = field(default_factory=dict)  # by rule
    parts: "tuple[BadSamples, ...]" = ()  # of merged sources

    def total(self) -> dict[str, int]:
        """Return the number of skipped samples by rule, those of merged sources included."""
        total = Counter(self.counts)
        for part in {id(part): part for part in self.parts}.values():
            total.update(part.total())
        return dict(total)

    def note(self, origin: Origin, reason: str, bad: _Mask) -> None:
        """Count the samples of a mask.

        Raises:
            DataLossError: bad samples are not skipped.
        """
        num_bad = int(bad.sum())
        if num_bad == 0:
            return
        if not self.skips:
            raise DataLossError(
                f"{origin.at(int(bad.argmax()))} {reason}; fix the data, or skip such samples "
                'with on_error="skip"'
            )
        rule = reason.split(", got ")[0]
        self.counts[rule] = self.counts.get(rule, 0) + num_bad


def to_block(
    raw: pa.RecordBatch, columns: Columns, origin: Origin, bad: BadSamples
) -> pa.RecordBatch:
    """Check and convert the columns of a source.

    Raises:
        ValueError: a column is missing.
        TypeError: a column has a type that cannot be converted.
        DataLossError: a value breaks a rule, and bad samples are not skipped.
    """
    columns.check(str(origin), raw.schema)
    work = _Conversion(raw, origin, bad, np.zeros(raw.num_rows, np.bool_))
    arrays: dict[str, pa.Array] = {}
    for ids in columns.id_columns:
        arrays[ids.name] = work.ids(ids)
    for column in (*columns.dense_columns, *columns.label_columns):
        arrays[column.name] = work.floats(column)
    if columns.weight is not None:
        arrays[columns.weight] = work.floats(DenseColumn(columns.weight))
    if columns.time is not None:
        arrays[columns.time] = work.times(columns.time)
    block = pa.record_batch(arrays)
    return block.filter(pa.array(~work.dropped)) if work.has_dropped else block


@dataclass(slots=True)
class _Conversion:
    """Conversion of one block.

    On large blocks most calls of numpy release the GIL, and wait for it again while another thread
    runs Python code. So a valid column is recognized by few calls of numpy.
    """

    raw: pa.RecordBatch
    origin: Origin
    bad: BadSamples
    dropped: _Mask
    has_dropped: bool = False

    def _column(self, name: str) -> pa.Array:
        array = self.raw.column(name)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        return array

    def _skip(self, reason: str, bad: _Mask) -> None:
        self.bad.note(self.origin, reason, bad & ~self.dropped)
        self.dropped |= bad
        self.has_dropped = self.has_dropped or bool(bad.any())

    def _type_error(self, name: str, expected: str, kind: pa.DataType) -> TypeError:
        return TypeError(f"{self.origin} expected column {name!r} of {expected}, got type {kind}")

    def ids(self, column: IdColumn) -> pa.Array:
        """Return one id for each sample, or lists of ids; a missing value is an empty list."""
        name = column.column or column.name
        array = self._column(name)
        if isinstance(array, _ListArray):
            return self._id_lists(column, array)
        keys = self._keys(name, array, array.type)
        keys = set_slot(keys, column.slot)
        if array.null_count == 0:
            return pa.array(keys)
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        splits = np.concatenate([np.zeros(1, np.int32), np.cumsum(valid, dtype=np.int32)])
        return pa.ListArray.from_arrays(pa.array(splits), pa.array(keys[valid]))

    def _id_lists(self, column: IdColumn, array: pa.Array) -> pa.Array:
        name = column.column or column.name
        if column.slot is None and column.max_length is None and _has_whole_int64(array):
            return array if array.type == _INT64_LISTS else array.cast(_INT64_LISTS)
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        items = array.flatten()  # without missing lists
        if pa.types.is_dictionary(items.type):
            items = items.dictionary_decode()
        keys = set_slot(self._keys(name, items, array.type), column.slot)
        keep: _Mask | None = None
        if items.null_count:
            keep = items.is_valid().to_numpy(zero_copy_only=False)
        if column.max_length is not None and lengths.max(initial=0) > column.max_length:
            begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
            is_early = np.arange(len(keys)) - begins < column.max_length
            keep = is_early if keep is None else keep & is_early
        if keep is not None:
            rows = np.repeat(np.arange(len(lengths)), lengths)[keep]
            keys, lengths = keys[keep], np.bincount(rows, minlength=len(lengths))
        splits = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
        return pa.ListArray.from_arrays(pa.array(splits), pa.array(keys))

    def _keys(self, name: str, items: pa.Array, kind: pa.DataType) -> npt.NDArray[np.int64]:
        """Return the keys of all items; the key of a missing item is undefined."""
        if pa.types.is_integer(items.type):
            if items.null_count:
                items = items.fill_null(0)
            keys: npt.NDArray[np.int64] = items.to_numpy(zero_copy_only=False)
            is_unsigned = pa.types.is_uint64(items.type)  # keeps the bits of a fid
            return keys.view(np.int64) if is_unsigned else keys.astype(np.int64, copy=False)
        if pa.types.is_null(items.type):
            return np.zeros(len(items), np.int64)
        try:
            return hash_strings(items)
        except TypeError:
            raise self._type_error(name, "integers or strings, or lists of them", kind) from None

    def floats(self, column: DenseColumn) -> pa.Array:
        """Return numbers of one width."""
        name = column.column or column.name
        array = self._column(name)
        if column.width is None:
            return pa.array(self._numbers(column, array, array.type))
        if not isinstance(array, _ListArray):
            raise self._type_error(name, f"lists of {column.width} numbers", array.type)
        return self._float_lists(column, column.width, array)

    def _float_lists(self, column: DenseColumn, width: int, array: pa.Array) -> pa.Array:
        name = column.column or column.name
        lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
        wrong = lengths != width
        fill = column.fill
        if fill is not None:
            wrong &= lengths >= 0
        got = int(lengths[wrong.argmax()]) if wrong.any() else 0
        expected = f"expected {width} numbers in column {name!r}"
        self._skip(f"{expected}, got {got if got >= 0 else 'none'}", wrong)
        whole = lengths == width
        present = array.filter(pa.array(whole)) if not whole.all() else array
        rows = np.full((len(array), width), 0.0 if fill is None else fill, np.float32)
        items = present.flatten()
        numbers = self._plain_numbers(name, items, array.type, fill)
        rows[whole] = numbers.reshape(-1, width)
        if _has_odd(numbers):
            is_odd, text = _odd_numbers(name, items, numbers)
            odd_rows = np.zeros(len(array), np.bool_)
            odd_rows[whole] = is_odd.reshape(-1, width).any(axis=1)
            self._skip(text, odd_rows)
        flat = rows.reshape(-1)
        if fill is None and items.null_count:
            missing = np.asarray(np.isnan(rows).any(axis=1))
            self._skip(f"{expected}, got missing ones", missing)
        if not _is_inside(column, flat):
            out = np.asarray(_is_out(column, flat).reshape(-1, width).any(axis=1))
            self._skip(_range_text(name, column, rows[out][0]), out)
        return pa.FixedSizeListArray.from_arrays(pa.array(flat), width)

    def _numbers(
        self, column: DenseColumn, array: pa.Array, kind: pa.DataType
    ) -> npt.NDArray[np.float32]:
        name = column.column or column.name
        if array.null_count and column.fill is None:
            missing = array.is_null().to_numpy(zero_copy_only=False)
            self._skip(f"expected a number in column {name!r}, got none", missing)
        numbers = self._plain_numbers(name, array, kind, column.fill)
        if _has_odd(numbers):
            is_odd, text = _odd_numbers(name, array, numbers)
            self._skip(text, is_odd)
        if not _is_inside(column, numbers):
            out = _is_out(column, numbers)
            self._skip(_range_text(name, column, numbers[out][:1]), out)
        return numbers

    def _plain_numbers(
        self, name: str, items: pa.Array, kind: pa.DataType, fill: float | None
    ) -> npt.NDArray[np.float32]:
        is_number = pa.types.is_integer(items.type) or pa.types.is_floating(items.type)
        if pa.types.is_null(items.type) or pa.types.is_boolean(items.type):
            items = items.cast(pa.float32())
        elif not is_number:
            raise self._type_error(name, "numbers", kind)
        if items.null_count:
            items = items.cast(pa.float32(), safe=False).fill_null(
                float("nan") if fill is None else fill
            )
        numbers: npt.NDArray[np.float32] = items.to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):  # `_odd_numbers` reports it
            return numbers.astype(np.float32, copy=False)

    def times(self, name: str) -> pa.Array:
        """Return seconds since 1970."""
        array = self._column(name)
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("s", tz=array.type.tz), safe=False).cast(pa.int64())
        elif not pa.types.is_integer(array.type):
            raise self._type_error(name, "integers or timestamps", array.type)
        if array.null_count:
            missing = array.is_null().to_numpy(zero_copy_only=False)
            self._skip(f"expected a time in column {name!r}, got none", missing)
            array = array.fill_null(0)
        return array.cast(pa.int64())


def _has_whole_int64(array: pa.Array) -> bool:
    is_list = isinstance(array, pa.ListArray) and pa.types.is_int64(array.type.value_type)
    return is_list and array.null_count == 0 and array.values.null_count == 0


def _has_odd(numbers: npt.NDArray[np.float32]) -> bool:
    """Whether a number is infinite or NaN, with one call of numpy."""
    with np.errstate(invalid="ignore"):
        return not math.isfinite(numbers.sum(dtype=np.float64))


def _odd_numbers(name: str, items: pa.Array, numbers: npt.NDArray[np.float32]) -> tuple[_Mask, str]:
    """Return the mask of present values that are no finite float32, and the reason."""
    is_odd: _Mask = ~np.isfinite(numbers) & items.is_valid().to_numpy(zero_copy_only=False)
    got = items[int(is_odd.argmax())].as_py() if is_odd.any() else None
    return is_odd, f"expected finite numbers of float32 in column {name!r}, got {got}"


def set_slot(keys: npt.NDArray[np.int64], slot: int | None) -> npt.NDArray[np.int64]:
    """Return the keys as fids v2 of a slot, as `IdColumn(slot=)` does; None changes nothing."""
    return keys if slot is None else (slot << _FID_BITS) | (keys & ((1 << _FID_BITS) - 1))


def _bounds(column: DenseColumn) -> tuple[float, float]:
    low, high = (column.low, column.high) if isinstance(column, Label) else (None, None)
    return -np.inf if low is None else low, np.inf if high is None else high


def _is_inside(column: DenseColumn, numbers: npt.NDArray[np.float32]) -> bool:
    """Whether all labels are in their range; NaN is not. Other columns have no range."""
    if not isinstance(column, Label) or not len(numbers):
        return True
    low, high = _bounds(column)
    return bool(low <= numbers.min() and numbers.max() <= high)


def _is_out(column: DenseColumn, numbers: npt.NDArray[np.float32]) -> _Mask:
    """Return the mask of labels outside their range."""
    low, high = _bounds(column)
    inside: _Mask = (numbers >= low) & (numbers <= high)
    return ~inside


def _range_text(name: str, column: DenseColumn, got: npt.NDArray[np.float32]) -> str:
    low, high = _bounds(column)
    shown = ", ".join(f"{number:g}" for number in got)
    return f"expected a label from {low:g} to {high:g} in column {name!r}, got {shown}"
