"""Read keys and vectors from the columns of Parquet files, by record batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from monolith.checkpoint.vectors.vector_chunk import Keys, VectorChunk, num_distinct, repeated_rows
from monolith.checkpoint.vectors.vector_keys import KeyRule
from monolith.data.files.listing import DataFile, Paths, find_files, naming
from monolith.errors import DataLossError, InvalidArgumentError

_KEY_ROWS = 1 << 20  # of a batch of keys


@dataclass(frozen=True)
class VectorColumns:
    """The names of the columns of a Parquet file of vectors.

    Args:
        key: Column of keys.
        vector: Column of lists of floats.
        time: Column of the last update, in seconds since 1970 or as timestamps; None without one.
    """

    key: str
    vector: str
    time: str | None = None

    @property
    def names(self) -> list[str]:
        """All names."""
        return [self.key, self.vector, *([] if self.time is None else [self.time])]


class ParquetVectors:
    """The vectors of Parquet files in the order of the files and of their rows.

    The keys of all files are read first, so that repeated keys are found before the vectors are.

    Args:
        paths: Files, globs or folders.
        columns: Names of the columns.
        rule: Rule that makes keys of ids.
        is_last_kept: Whether of equal keys the last row counts; otherwise equal keys are refused.
        advance: Called with the number of keys that were read so far.

    Raises:
        NotFoundError: A path matches no file.
        InvalidArgumentError: A column is missing or of another type, or a key occurs twice.
        DataLossError: A file is damaged, or a key is missing.
    """

    def __init__(
        self,
        paths: Paths,
        columns: VectorColumns,
        rule: KeyRule,
        *,
        is_last_kept: bool = False,
        advance: Callable[[int], None] = lambda num_rows: None,
    ) -> None:
        self._files, self._columns, self._rule = find_files(paths), columns, rule
        for file in self._files:
            with naming(file), file.open() as source:
                _check_columns(file, pq.read_schema(source), columns)
        keys: list[Keys] = []
        for file in self._files:
            keys.append(self._read_keys(file))
            advance(sum(map(len, keys)))
        all_keys = np.concatenate(keys)
        self.num_rows, self.num_keys = len(all_keys), num_distinct(all_keys)
        first = self._files[0].path
        self.where = first if len(self._files) == 1 else f"{first} and {len(self._files) - 1} more"
        if self.num_keys != self.num_rows and not is_last_kept:
            raise InvalidArgumentError(
                f"[import] expected each key once, got {self._places(keys, all_keys)}; to take the "
                "last row of each key: --duplicates last"
            )
        self.dim = self._dim()

    def _places(self, keys: Sequence[Keys], all_keys: Keys) -> str:
        """Return the places of the first repeated key, for messages."""
        begins = np.cumsum([0, *map(len, keys)])
        words = []
        rows = repeated_rows(all_keys)
        for row in rows:
            number = int(np.searchsorted(begins, row, side="right")) - 1
            words.append(f"row {row - begins[number]} of {self._files[number].path}")
        return f"key {all_keys[rows[0]]} in {' and in '.join(words)} (counted from 0)"

    def _read_keys(self, file: DataFile) -> Keys:
        parts, row = [np.empty(0, np.int64)], 0
        for batch in _batches(file, [self._columns.key], _KEY_ROWS):
            parts.append(self._rule.keys(batch.column(0), _column(file, self._columns.key), row))
            row += batch.num_rows
        return np.concatenate(parts)

    def _dim(self) -> int:
        """Return the size of the first vector; 0 without rows."""
        name = self._columns.vector
        for file in self._files:
            for batch in _batches(file, [name], 1):
                dim: int = _matrix(batch.column(0), None, _column(file, name), 0).shape[1]
                return dim
        return 0

    def chunks(self, chunk_rows: int) -> Iterator[VectorChunk]:
        """Yield all vectors in their order, at most `chunk_rows` at a time."""
        for file in self._files:
            row = 0
            for batch in _batches(file, self._columns.names, chunk_rows):
                yield self._chunk(file, batch, row)
                row += batch.num_rows

    def _chunk(self, file: DataFile, batch: pa.RecordBatch, row: int) -> VectorChunk:
        columns = self._columns
        keys = self._rule.keys(batch.column(columns.key), _column(file, columns.key), row)
        matrix = _matrix(batch.column(columns.vector), self.dim, _column(file, columns.vector), row)
        times = None
        if columns.time is not None:
            place = _column(file, columns.time)
            times = torch.from_numpy(_seconds(batch.column(columns.time), place, row))
        return VectorChunk(torch.from_numpy(keys), torch.from_numpy(matrix), times, file.path, row)


def _column(file: DataFile, name: str) -> str:
    return f"column {name!r} of {file.path}"


def _batches(file: DataFile, names: list[str], num_rows: int) -> Iterator[pa.RecordBatch]:
    with naming(file), file.open() as source:
        reader = pq.ParquetFile(source)
        yield from reader.iter_batches(num_rows, columns=names, use_threads=False)


def _check_columns(file: DataFile, schema: pa.Schema, columns: VectorColumns) -> None:
    for option, name in zip(("--key", "--vector", "--time"), columns.names, strict=False):
        if name not in schema.names:
            raise InvalidArgumentError(
                f"[import] expected one of the columns {', '.join(schema.names)} as {option}, got "
                f"{name!r} ({file.path})"
            )
    kind = schema.field(columns.vector).type
    if not _is_list(kind) or not pa.types.is_floating(kind.value_type):
        raise InvalidArgumentError(
            f"[import] expected lists of floats, got {kind} ({_column(file, columns.vector)})"
        )


def _is_list(kind: pa.DataType) -> bool:
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in checks)


def _matrix(lists: pa.Array, dim: int | None, where: str, row: int) -> NDArray[np.float32]:
    """Return lists of floats as a matrix, (n, dim); with a dim of None, the first list decides.

    Raises:
        DataLossError: A list or a number is missing, or a list has another size.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
    size = int(lengths[0]) if dim is None else dim
    values = lists.flatten()
    if (lengths != size).any() or size < 0 or values.null_count:
        raise _bad_list(lists, lengths, size, where, row)
    numbers: NDArray[np.float32] = values.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):  # infinite numbers are refused with their key
        return np.array(numbers, np.float32).reshape(-1, size)  # Arrow's memory is read-only


def _bad_list(
    lists: pa.Array, lengths: NDArray[np.int32], size: int, where: str, row: int
) -> DataLossError:
    wrong = np.flatnonzero((lengths != size) | (lengths < 0))
    if len(wrong):
        place, got = int(wrong[0]), int(lengths[wrong[0]])
        text = f"a list of {got}" if got >= 0 else "none"
    else:
        is_bad = [None in item for item in lists.to_pylist()]
        place, text = is_bad.index(True), "a list with a missing number"
    expected = f"a list of {size} floats" if size >= 0 else "a list of floats"
    return DataLossError(
        f"[import] expected {expected} in each row, got {text} in row {row + place} of {where}"
    )


def _seconds(times: pa.Array, where: str, row: int) -> Keys:
    """Return times in seconds since 1970.

    Raises:
        InvalidArgumentError: The column has another type.
        DataLossError: A time is missing.
    """
    if pa.types.is_timestamp(times.type) or pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    if not pa.types.is_integer(times.type):
        raise InvalidArgumentError(
            f"[import] expected times as integers or timestamps, got {times.type} ({where})"
        )
    if times.null_count:
        place = int(np.argmax(times.is_null().to_numpy(zero_copy_only=False)))
        raise DataLossError(
            f"[import] expected a time in each row, got none in row {row + place} of {where}"
        )
    seconds: Keys = times.to_numpy(zero_copy_only=False).astype(np.int64)
    return seconds
