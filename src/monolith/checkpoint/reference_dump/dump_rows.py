"""Decode the records of a dump into rows of a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from monolith.checkpoint.reference_dump.dump_layout import RowLayout, kind_name
from monolith.checkpoint.reference_dump.dump_stream import MAX_BYTES, DumpStream
from monolith.errors import InvalidArgumentError
from monolith.ops.compiled import load_native
from monolith.table.codecs import encode_rows
from monolith.table.config import (
    column_sizes,
    segment_name,
    segments_of,
    state_columns,
)
from monolith.table.rows import Rows
from monolith.table.rules import NUM_SLOTS

if TYPE_CHECKING:
    from monolith._native import DumpError

_BATCH_BYTES = 1 << 22  # of decoded rows; a row alone may be larger

# Faults of a record that has another layout than the table, rather than being damaged.
_LAYOUT_FAULTS = frozenset({"dim", "kind", "elements", "state"})


@dataclass(kw_only=True)
class RowCounts:
    """Numbers of rows, and their times.

    Args:
        num_rows: number of rows.
        num_without_time: number of rows whose time is 0 or missing.
        oldest_time: smallest time of the other rows; None without any.
        newest_time: largest time of the other rows; None without any.
    """

    num_rows: int = 0
    num_without_time: int = 0
    oldest_time: int | None = None
    newest_time: int | None = None

    def add(self, times: torch.Tensor) -> None:
        """Count rows by their times, int64 (n,)."""
        known = times[times > 0]
        self.num_rows += len(times)
        self.num_without_time += len(times) - len(known)
        if len(known):
            low, high = map(int, torch.aminmax(known))
            self.oldest_time = min(low, self.oldest_time or low)
            self.newest_time = max(high, self.newest_time or high)


class RowReader:
    """Decodes the rows of one dump of a table, from one file after the other. Not thread-safe.

    Args:
        layout: layout of the rows; None decodes keys and times alone, of rows of any layout.
        skips_non_finite: whether rows with NaN or infinite numbers are counted and left out.

    Attributes:
        num_non_finite: number of rows that were left out.
    """

    def __init__(self, layout: RowLayout | None, *, skips_non_finite: bool = False) -> None:
        self._layout = layout
        self.num_non_finite = 0
        self._has_rows = False
        self._with_state = layout is not None and bool(layout.kinds)
        self._decoder = load_native().DumpDecoder(
            [] if layout is None else layout.segments,
            max_bytes=MAX_BYTES,
            has_segments=layout is not None,
            with_state=self._with_state,
            skips_non_finite=skips_non_finite,
        )

    def read(self, stream: DumpStream, num_records: int | None = None) -> Iterator[Rows]:
        """Yield the rows of the next records; a batch overwrites the batch before.

        Args:
            stream: file of the dump.
            num_records: number of records to read; None reads to the end of the file.

        Raises:
            DataLossError: a record is damaged, or the file ends before.
            InvalidArgumentError: the dump has another layout than the table.
        """
        batch = self._new_batch(num_records)
        addresses = self._addresses_of(batch)
        left = num_records
        while left is None or left > 0:
            most = len(batch) if left is None else min(len(batch), left)
            block = self._decoder.decode(stream.address, stream.size, most, *addresses)
            if block.num_rows:
                yield self._first_rows(batch, block.num_rows)
            self._has_rows |= block.num_records > 0
            self.num_non_finite += block.num_non_finite
            if block.error.fault != "none":
                raise self._error(stream, block.error)
            stream.skip(block.consumed)
            left = None if left is None else left - block.num_records
            if block.needed and not stream.fill(block.needed):
                if stream.size:
                    got = f"the end of the file after {stream.size}"
                    raise stream.damage(f"a record of at least {block.needed} bytes", got)
                if left is not None:
                    got = f"the end of the file after {(num_records or 0) - left}"
                    raise stream.damage(f"{num_records} records, as the metadata says", got)
                return

    def _new_batch(self, num_records: int | None) -> Rows:
        """Allocate rows with weights as float32; state that is not decoded is that of new rows."""
        config = None if self._layout is None else self._layout.config
        sizes = {} if config is None else column_sizes(config)
        num_rows = _BATCH_BYTES // (16 + 4 * sum(sizes.values()))
        num_rows = max(1, min(num_rows, num_rows if num_records is None else num_records))
        columns: dict[str, torch.Tensor] = {}
        for i, segment in enumerate(() if config is None else segments_of(config)):
            assert config is not None
            columns[f"weight/{segment_name(config, i)}"] = _empty(num_rows, segment.dim, "float32")
        for name, column in () if config is None else state_columns(config):
            columns[name] = _empty(num_rows, column.size, column.dtype)
            if not self._with_state:
                columns[name].fill_(column.initial)
        keys, times = _empty(2, num_rows, "int64")
        return Rows(keys, times, columns)

    def _addresses_of(self, batch: Rows) -> tuple[int, int, list[int]]:
        """Return the addresses of keys, times and the columns that are decoded."""
        columns = [
            column.data_ptr()
            for name, column in batch.columns.items()
            if self._with_state or name.startswith("weight/")
        ]
        return batch.keys.data_ptr(), batch.times.data_ptr(), columns

    def _first_rows(self, batch: Rows, num_rows: int) -> Rows:
        columns = {name: column[:num_rows] for name, column in batch.columns.items()}
        rows = Rows(batch.keys[:num_rows], batch.times[:num_rows], columns)
        return rows if self._layout is None else encode_rows(self._layout.config, rows)

    def _error(self, stream: DumpStream, error: "DumpError") -> Exception:
        expected, got = self._words(error)
        if error.fault in _LAYOUT_FAULTS and not self._has_rows:
            assert self._layout is not None
            return InvalidArgumentError(
                f"[reference dump] expected {expected}, as table {self._layout.config.name!r} has, "
                f"got {got} ({stream.place(error.at)}); change the feature in the task"
                + ("" if error.fault == "dim" else ", or begin with fresh state: --weights-only")
            )
        return stream.damage(expected, got, error.at)

    def _words(self, error: "DumpError") -> tuple[str, str]:
        """Return the expected and the actual part of a record."""
        segments = [] if self._layout is None else self._layout.segments
        dims = f" (segments of {', '.join(str(dim) for dim, *_ in segments)})" * (len(segments) > 1)
        words = {
            "message": ("an EntryDump message", "other bytes"),
            "wire_type": ("an EntryDump message", "a field of another type"),
            "record_length": (
                f"a record of at most {error.expected} bytes",
                f"{error.got % 2**64}",
            ),
            "length_checksum": ("the checksum of the record's length", "another"),
            "checksum": ("the checksum of the record's bytes", "another"),
            "id": ("a row with an id", "a row without one"),
            "time": (f"last_update_ts_sec in [0, {error.expected}]", f"{error.got}"),
            "non_finite": ("finite numbers", f"NaN or infinity in the row of key {error.got}"),
            "dim": (f"{error.expected} weights{dims}", _count(error)),
            "elements": (f"{error.expected} optimizer dumps", _count(error)),
        }
        if error.fault in words:
            return words[error.fault]
        assert self._layout is not None
        segment = self._layout.name_of(error.segment)
        if error.fault == "kind":
            return f"{kind_name(error.expected)} in {segment}", kind_name(error.got)
        field = self._layout.field_name(error.segment, error.field)
        return f"{error.expected} numbers of {field} in {segment}", _count(error)


def slots_of(keys: torch.Tensor) -> torch.Tensor:
    """Return the slot of each key by the rule of fids v2, int64 (n,)."""
    return (keys >> 48) & (NUM_SLOTS - 1)


def _empty(num_rows: int, size: int, dtype: str) -> torch.Tensor:
    return torch.empty(num_rows, size, dtype=getattr(torch, dtype), device="cpu")


def _count(error: "DumpError") -> str:
    return "more" if error.got > error.expected else str(error.got)
