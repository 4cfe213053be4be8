"""Read the keys of vectors: a line or a cell of a column for each row, or the row's number."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from monolith.checkpoint.vectors.vector_chunk import Keys
from monolith.data import hash_strings
from monolith.data.convert import set_slot
from monolith.data.files.listing import file_at, naming
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError

RANGE = "range"
"""In place of a file of keys: row i has key i."""

_NO_SEPARATOR = "\x01"  # a line is one cell


@dataclass(frozen=True)
class KeyRule:
    """The rule that makes keys of ids, the same that a data source of the task uses.

    Args:
        is_hashed: Whether ids are strings, whose key is `monolith.data.hash_strings`.
        slot: Slot of the keys, as `IdColumn(slot=)` has; None keeps all bits of the ids.
    """

    is_hashed: bool = False
    slot: int | None = None

    def __post_init__(self) -> None:
        if self.slot is not None and not 0 <= self.slot < 1 << 15:
            raise InvalidArgumentError(
                f"[import] expected a slot from 0 to {(1 << 15) - 1}, got {self.slot}"
            )

    def keys(self, ids: pa.Array, where: str, first_row: int = 0) -> Keys:
        """Return the keys of ids.

        Args:
            ids: Arrow array of integers, or of strings with `is_hashed`.
            where: Name of the ids' place, for messages.
            first_row: Number of the first id in its place.

        Raises:
            InvalidArgumentError: The ids have another type.
            DataLossError: An id is missing.
        """
        if pa.types.is_dictionary(ids.type):
            ids = ids.dictionary_decode()
        is_integer = pa.types.is_integer(ids.type)
        if self.is_hashed == is_integer or not (is_integer or _is_text(ids.type)):
            expected, remedy = "integers", "; hash strings with --hash-keys"
            if self.is_hashed:
                expected, remedy = "strings with --hash-keys", "; leave --hash-keys out"
            remedy = remedy if is_integer or _is_text(ids.type) else ""
            raise InvalidArgumentError(
                f"[import] expected keys as {expected}, got {ids.type} ({where}){remedy}"
            )
        if ids.null_count:
            row = first_row + int(np.argmax(ids.is_null().to_numpy(zero_copy_only=False)))
            raise DataLossError(
                f"[import] expected a key in each row, got none in row {row} of {where}"
            )
        if self.is_hashed:
            return set_slot(hash_strings(ids), self.slot)
        keys = ids.to_numpy(zero_copy_only=False)
        if pa.types.is_uint64(ids.type):  # keeps the bits of a fid
            keys = keys.view(np.int64)
        return set_slot(keys.astype(np.int64), self.slot)  # a copy: Arrow's memory is read-only


def _is_text(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    return any(check(kind) for check in (*checks, pa.types.is_large_binary))


def read_keys(place: str, rule: KeyRule, num_rows: int, column: str | None = None) -> Keys:
    """Return the keys of a file, or the numbers of rows.

    Args:
        place: Path of a text file with an id in each line, or of a Parquet file; or "range".
        rule: Rule that makes keys of ids.
        num_rows: Number of rows that need a key; only "range" uses the number.
        column: Column of a Parquet file; None takes the only one.

    Raises:
        NotFoundError: The file does not exist.
        InvalidArgumentError: The arguments or the columns do not fit.
        DataLossError: A line is no id, or the file is damaged.
    """
    if place == RANGE:
        if rule.is_hashed or column is not None:
            raise InvalidArgumentError(
                f"[import] expected a file of keys with --hash-keys and --key-column, got "
                f"--keys {RANGE}"
            )
        return set_slot(np.arange(num_rows, dtype=np.int64), rule.slot)
    try:
        file = file_at(place)
    except NotFoundError as error:
        raise NotFoundError(f"[import] expected a file of keys, got none at {place!r}") from error
    with naming(file), file.open() as source:
        if source.read(4) == b"PAR1":
            source.seek(0)
            ids = _column(pq.ParquetFile(source), column, place)
        else:
            source.seek(0)
            ids = _lines(source, rule, column, place)
    return rule.keys(ids, place)


def _column(file: pq.ParquetFile, column: str | None, place: str) -> pa.Array:
    names = file.schema_arrow.names
    if column is None and len(names) != 1:
        raise InvalidArgumentError(
            f"[import] expected one column of keys, got {', '.join(names) or 'none'} in {place}; "
            "name one with --key-column"
        )
    if column is not None and column not in names:
        raise InvalidArgumentError(
            f"[import] expected one of the columns {', '.join(names)} as --key-column, got "
            f"{column!r} ({place})"
        )
    return file.read([column or names[0]]).column(0).combine_chunks()


def _lines(source: pa.NativeFile, rule: KeyRule, column: str | None, place: str) -> pa.Array:
    """Return the lines of a file, as strings or as integers."""
    if column is not None:
        raise InvalidArgumentError(
            f"[import] expected --key-column with a Parquet file, got the text file {place}"
        )
    kind = pa.string() if rule.is_hashed else pa.int64()
    if source.size() == 0:
        return pa.array([], kind)
    try:
        table = pyarrow.csv.read_csv(
            source,
            pyarrow.csv.ReadOptions(column_names=["key"], use_threads=False),
            pyarrow.csv.ParseOptions(
                delimiter=_NO_SEPARATOR, quote_char=False, ignore_empty_lines=False
            ),
            pyarrow.csv.ConvertOptions(column_types={"key": kind}, null_values=[]),
        )
    except pa.ArrowInvalid as error:
        hint = "" if rule.is_hashed else "; hash strings with --hash-keys"
        raise DataLossError(
            f"[import] expected {'a string' if rule.is_hashed else 'an int64'} in each line of "
            f"{place}, got: {error}{hint}"
        ) from error
    return table.column(0).combine_chunks()
