"""`ReferenceTable`: the table in Python that defines the meaning of every verb."""

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.table import initializers as counter_random
from monolith.table.base import BaseTable
from monolith.table.calls import DEFAULT_CHANGES_BYTES, Clock, wall_clock
from monolith.table.config import TableConfig, segment_name, segments_of, state_columns, storage_of
from monolith.table.key_sums import (
    Matrix,
    distinct_keys,
    finite_gradients,
    initial_weights,
    occurrence_sums,
    split_absent,
)
from monolith.table.reference import rounding
from monolith.table.reference.row_store import ReferenceRow, ReferenceRows, tensors_of
from monolith.table.reference.steps import Call, optimizer_step
from monolith.table.reference.touched import CutReads, ReferenceCut, ReferenceLog
from monolith.table.rows import Applied, Entries, Rows
from monolith.table.snapshot import MAX_CUTS


class ReferenceLayout:
    """Layout of rows in float32 words: decoded weights of all segments, then state of any dtype.

    Args:
        config: settings of the table.
    """

    def __init__(self, config: TableConfig) -> None:
        self._config = config
        self.columns = _slices(config)
        self.width = max(at.stop for at in self.columns.values())
        self._dtypes = {name: column.dtype for name, column in state_columns(config)}
        self._storages = {
            f"weight/{segment_name(config, i)}": storage_of(config, i)
            for i in range(len(segments_of(config)))
        }

    def zeros(self, num_rows: int) -> Matrix:
        """Return rows of zeros, (num_rows, width)."""
        return np.zeros((num_rows, self.width), np.float32)

    def fresh(self, keys: Sequence[int]) -> Matrix:
        """Return the new rows of missing keys, (n, width); zeros for a serving table."""
        config, rows = self._config, self.zeros(len(keys))
        if config.kind == "serving":
            return rows
        for i, segment in enumerate(segments_of(config)):
            weights = self.columns[f"weight/{segment_name(config, i)}"]
            rows[:, weights] = initial_weights(config, segment.initializer, keys, weights)
        initial = rows[:, : config.dim]
        initial[:] = rounding.round_rows(config, keys, initial, call=0)
        for name, column in state_columns(config):
            self.column(rows, name)[:] = column.initial
        return rows

    def column(self, rows: Matrix, name: str) -> NDArray[Any]:
        """Return a column of rows as a view with the column's dtype, (n, size)."""
        return rows[:, self.columns[name]].view(self._dtypes.get(name, "float32"))

    def decode(self, name: str, column: torch.Tensor) -> NDArray[Any]:
        """Return the values of a column of an export."""
        if name in self._storages:
            dim = self.columns[name].stop - self.columns[name].start
            return rounding.decode(column, self._storages[name], dim)
        values: NDArray[Any] = column.numpy()
        return values

    def export_rows(self, keys: Sequence[int], times: Sequence[int], values: Matrix) -> Rows:
        """Return rows in the form of exports."""
        return Rows(
            torch.from_numpy(np.array(keys, np.int64)),
            torch.from_numpy(np.array(times, np.int64)),
            {name: self._encode(name, self.column(values, name)) for name in self.columns},
        )

    def _encode(self, name: str, values: NDArray[Any]) -> torch.Tensor:
        if name in self._storages:
            return rounding.encode(values, self._storages[name])
        return torch.from_numpy(values.copy())


def _slices(config: TableConfig) -> dict[str, slice]:
    """Return the place of each export column in a row's 4-byte words, with decoded weights."""
    words = {f"weight/{segment_name(config, i)}": s.dim for i, s in enumerate(segments_of(config))}
    words.update({name: column.num_bytes // 4 for name, column in state_columns(config)})
    ends = np.cumsum(list(words.values())).tolist()
    return {name: slice(end - words[name], end) for name, end in zip(words, ends, strict=True)}


class ReferenceTable(BaseTable):
    """Defines the meaning of the verbs; `BaseTable` describes each verb.

    Args:
        config: settings of the table.
        clock: function that returns the time of a call without `now`.
        changes_bytes: bound of the touched log.

    Example:
        >>> from monolith.table import Segment, TableConfig, Zeros
        >>> table = ReferenceTable(TableConfig("user", Segment(2, initializer=Zeros())))
        >>> table.assign(torch.tensor([7]), torch.tensor([[1.0, 2.0]]), now=100)
        >>> table.lookup(torch.tensor([7, 8])).tolist()
        [[1.0, 2.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        clock: Clock = wall_clock,
        changes_bytes: int = DEFAULT_CHANGES_BYTES,
    ) -> None:
        super().__init__(config, clock=clock, changes_bytes=changes_bytes)
        self._lock = threading.Lock()
        self._log = ReferenceLog(self._changes_bytes)
        self._cuts: set[object] = set()
        self._store = ReferenceRows(config, self._log.note)
        self._rows = self._store.rows
        self._layout = ReferenceLayout(config)
        self._num_update_calls = 0
        self._latest_time = 0

    @contextmanager
    def _open(self, verb: str, now: int = 0) -> Iterator[None]:
        """Hold the lock for one call; refuse the call if the table was closed meanwhile.

        The time of a successful call updates `latest_time`.
        """
        with self._lock:
            self._check_open(verb)
            yield
            self._latest_time = max(self._latest_time, now)

    # Reading

    def _lookup(self, keys: torch.Tensor, initial: bool, step: int, threads: int) -> torch.Tensor:
        with self._open("lookup"):
            return self._view_rows(keys.tolist(), initial, step)

    def _contains(self, keys: torch.Tensor) -> torch.Tensor:
        with self._open("contains"):
            return torch.from_numpy(self._is_present(keys))

    def _lookup_entry(self, keys: torch.Tensor) -> Entries:
        with self._open("lookup_entry"):
            return self._entries_of(self._rows, keys)

    def _export_chunk(self, first: int, last: int, limit: int) -> Rows:
        with self._open("export"):
            return self._chunk_of(self._rows, first, last, limit)

    # Writing

    def _lookup_or_insert(
        self, keys: torch.Tensor, step: int, now: int, threads: int
    ) -> torch.Tensor:
        with self._open("lookup_or_insert", now):
            distinct, _ = distinct_keys(keys.tolist())
            refused = self._store.make_room(distinct)
            new = [key for key in distinct if key not in self._rows and key not in refused]
            self._store.put(new, self._layout.fresh(new), [now] * len(new))
            return self._view_rows(keys.tolist(), True, step)

    def _assign(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        absent: torch.Tensor | None,
        now: int,
        threads: int,
    ) -> None:
        with self._open("assign", now):
            places, gone = split_absent(keys.tolist(), absent)
            numbers, updates = keys[places].tolist(), values.detach()[places].numpy()
            distinct, place, admitted = self._admit(numbers, updates, now)
            rows = self._read(distinct)
            for i, value in zip(place, admitted, strict=True):
                rows[i, : self.dim] = value
            self._store.put(distinct, self._round_rows(distinct, rows), self._later(distinct, now))
            self._store.remove([key for key in gone if key in self._rows], "erased")

    def _assign_add(self, keys: torch.Tensor, values: torch.Tensor, now: int, threads: int) -> None:
        with self._open("assign_add", now), np.errstate(all="ignore"):
            distinct, place, admitted = self._admit(keys.tolist(), values.detach().numpy(), now)
            rows = self._read(distinct)
            rows[:, : self.dim] += occurrence_sums(place, admitted)
            self._store.put(distinct, self._round_rows(distinct, rows), self._later(distinct, now))

    def _apply_gradients(
        self,
        keys: torch.Tensor,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        remaining, finite = finite_gradients(self.config, keys.tolist(), grads.detach().numpy())
        num_skipped = len(keys) - len(remaining)
        with self._open("apply_gradients", now), np.errstate(all="ignore"):
            distinct, place, admitted = self._admit(remaining, finite, now)
            rows = self._read(distinct)
            self._step(rows, occurrence_sums(place, admitted), rates, step)
            rows = self._round_rows(distinct, rows)
            num_inserted = self._store.put(distinct, rows, self._later(distinct, now))
            self._store.counters["skipped"] += num_skipped
        num_refused = len(set(remaining)) - len(distinct)
        return Applied(len(distinct), num_inserted, num_refused, num_skipped)

    def _reinitialize(self, keys: torch.Tensor, now: int) -> torch.Tensor:
        with self._open("reinitialize", now):
            existed = self._is_present(keys)
            distinct, _ = distinct_keys(keys.tolist())
            refused = self._store.make_room(distinct)
            distinct = [key for key in distinct if key not in refused]
            self._store.put(distinct, self._layout.fresh(distinct), [now] * len(distinct))
            return torch.from_numpy(existed.astype(np.int32))

    def _erase(self, keys: torch.Tensor) -> torch.Tensor:
        with self._open("erase"):
            existed = self._is_present(keys)
            present = [key for key in dict.fromkeys(keys.tolist()) if key in self._rows]
            self._store.remove(present, "erased")
            return torch.from_numpy(existed)

    def _import_rows(self, rows: Rows, absent: torch.Tensor | None, threads: int) -> None:
        with self._open("import_rows", max(rows.times.tolist(), default=0)):
            places, gone = split_absent(rows.keys.tolist(), absent)
            rows = rows.take(places)
            values = np.empty((len(rows), self._layout.width), np.float32)
            for name in self._layout.columns:
                column = rows.columns[name].detach()
                self._layout.column(values, name)[:] = self._layout.decode(name, column)
            last = {key: i for i, key in enumerate(rows.keys.tolist())}
            refused = self._store.make_room(last)
            admitted = [i for key, i in last.items() if key not in refused]
            self._store.put(
                rows.keys[admitted].tolist(), values[admitted], rows.times[admitted].tolist()
            )
            self._store.remove([key for key in gone if key in self._rows], "erased")

    def _clear(self) -> None:
        with self._open("clear"):
            if self._cuts:
                raise self._cut_error()
            self._store.clear()
            self._log.forget()
            self._latest_time = 0

    # Changes

    def _open_cut(self, cursor: str | None) -> ReferenceCut | None:
        with self._open("cut"):
            if len(self._cuts) == MAX_CUTS:
                return None
            cut = object()
            self._cuts.add(cut)
            rows, admission = dict(self._rows), copy.deepcopy(self._store.admission)
            facts = len(rows), self._num_update_calls, self._latest_time
            read = None if cursor is None else self._log.keep_read(cursor)

        def export_chunk(first: int, last: int, limit: int) -> Rows:
            self._check_open("export")
            return self._chunk_of(rows, first, last, limit)

        def changes() -> tuple[bool, torch.Tensor, torch.Tensor]:
            with self._open("changes"):
                assert read is not None
                return _split_keys(rows, read.changed)

        def lookup_entry(keys: torch.Tensor) -> Entries:
            self._check_open("lookup_entry")
            return self._entries_of(rows, keys)

        def lookup(keys: torch.Tensor, step: int) -> torch.Tensor:
            self._check_open("lookup")
            weights = self._values_of(rows, keys.tolist())[:, : self.dim]
            return torch.from_numpy(rounding.view_rows(self.config, weights, step))

        def export_candidates(partitions: list[int]) -> dict[str, torch.Tensor]:
            self._check_open("export_candidates")
            return tensors_of(admission.columns(partitions))

        # Without the lock: a garbage collection may close a cut inside any call that holds the
        # lock.
        def end(is_read: bool) -> None:
            self._cuts.discard(cut)
            if read is not None:
                self._log.end_read(read, is_read)

        reads = CutReads(export_chunk, changes, lookup_entry, lookup, export_candidates)
        return ReferenceCut(facts, reads, end)

    def _has_cut(self) -> bool:
        return bool(self._cuts)

    def _changes(self, cursor: str) -> tuple[bool, torch.Tensor, torch.Tensor]:
        with self._open("changes"):
            return _split_keys(self._rows, self._log.read(cursor))

    def _drop_cursor(self, cursor: str) -> bool:
        with self._open("drop_cursor"):
            existed = cursor in self._log.cursors
            self._log.cursors.pop(cursor, None)
            return existed

    def _cursors(self) -> list[str]:
        with self._open("cursors"):
            return sorted(self._log.cursors)

    # Retention

    def _evict(self, reference: int) -> int:
        return self._evict_slice(0, reference)[0]

    def _evict_slice(self, first: int, reference: int) -> tuple[int, int | None]:
        with self._open("evict"):
            return self._store.evict(reference), None

    def _export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]:
        with self._open("export_candidates"):
            return self._store.export_candidates(partitions)

    def _import_candidates(self, columns: dict[str, torch.Tensor]) -> None:
        with self._open("import_candidates"):
            self._store.import_candidates(columns)

    # Facts

    def _num_rows(self) -> int:
        with self._open("len"):
            return len(self._rows)

    def _memory_report(self) -> dict[str, int]:
        with self._open("memory_report"):
            return self._store.memory_report()

    def _stats(self) -> dict[str, int]:
        with self._open("stats"):
            return self._store.stats()

    def _update_calls(self) -> int:
        return self._num_update_calls

    def _set_update_calls(self, number: int) -> None:
        with self._lock:
            self._num_update_calls = number

    def _seen_time(self) -> int:
        return self._latest_time

    def _set_seen_time(self, time: int) -> None:
        with self._lock:
            self._latest_time = time

    def _count_clamped(self) -> None:
        with self._lock:
            self._store.counters["clamped_times"] += 1

    def _close(self) -> None:
        with self._lock:
            self._rows.clear()

    # Rows. The caller holds the lock.

    def _is_present(self, keys: torch.Tensor) -> NDArray[np.bool_]:
        return _is_present(self._rows, keys)

    def _admit(
        self, keys: list[int], values: Matrix, now: int
    ) -> tuple[list[int], list[int], Matrix]:
        """Return the admitted distinct keys, and the places and the values of their occurrences."""
        positions = self._store.admit(keys, now, self._num_update_calls + 1)
        return *distinct_keys([keys[i] for i in positions]), values[positions]

    def _read(self, keys: Sequence[int], initial: bool = True) -> Matrix:
        """Return copies of the rows, (n, width); a missing row is new, or zeros."""
        rows = self._values_of(self._rows, keys)
        missing = [i for i, key in enumerate(keys) if key not in self._rows]
        if initial and missing:
            rows[missing] = self._layout.fresh([keys[i] for i in missing])
        return rows

    def _round_rows(self, keys: Sequence[int], rows: Matrix) -> Matrix:
        """Return the rows after one more update call, with rounded weights."""
        self._num_update_calls += 1
        weights, call = rows[:, : self.dim], self._num_update_calls
        weights[:] = rounding.round_rows(self.config, keys, weights, call)
        return rows

    def _view_rows(self, keys: Sequence[int], initial: bool, step: int) -> torch.Tensor:
        """Return the result of a lookup: zeros for a missing key that needs admission."""
        rows = self._read(keys, initial)
        weights = rounding.view_rows(self.config, rows[:, : self.dim], step)
        for i, key in enumerate(keys):
            if key not in self._rows and self._store.admission.has_rule(key):
                weights[i] = 0
        return torch.from_numpy(weights)

    def _step(self, rows: Matrix, grads: Matrix, rates: list[float], step: int) -> None:
        """Apply every segment's optimizer to all rows; a learning rate of 0 skips a segment."""
        for i, segment in enumerate(segments_of(self.config)):
            name, rate = segment_name(self.config, i), np.float32(rates[i])
            weights = self._layout.columns[f"weight/{name}"]
            state = {
                column.name: self._layout.column(rows, f"state/{name}/{column.name}")
                for column in segment.optimizer.state(segment.dim)
            }
            if rate != 0:
                w = rows[:, weights]
                g = rounding.view_gradient(segment.view, w, grads[:, weights], step)
                optimizer_step(segment.optimizer, w, state, Call(g, rate, step))

    def _later(self, keys: Sequence[int], now: int) -> list[int]:
        return [max(self._rows[key].time, now) if key in self._rows else now for key in keys]

    def _chunk_of(
        self, rows: Mapping[int, ReferenceRow], first: int, last: int, limit: int
    ) -> Rows:
        keys = np.fromiter(rows, np.int64, len(rows))
        hashes = counter_random.key_hashes(keys)
        inside = np.flatnonzero((hashes >= np.uint64(first)) & (hashes <= np.uint64(last)))
        selected: list[int] = keys[inside[np.argsort(hashes[inside])][:limit]].tolist()
        values = self._layout.zeros(len(selected))
        for i, key in enumerate(selected):
            values[i] = rows[key].values
        return self._layout.export_rows(selected, [rows[key].time for key in selected], values)

    def _values_of(self, rows: Mapping[int, ReferenceRow], keys: Sequence[int]) -> Matrix:
        """Return copies of rows, (n, width); zeros for a missing row."""
        values = self._layout.zeros(len(keys))
        for i, key in enumerate(keys):
            if key in rows:
                values[i] = rows[key].values
        return values

    def _entries_of(self, rows: Mapping[int, ReferenceRow], keys: torch.Tensor) -> Entries:
        numbers = keys.tolist()
        values = self._values_of(rows, numbers)
        times = [rows[key].time if key in rows else 0 for key in numbers]
        present = torch.from_numpy(_is_present(rows, keys))
        return Entries(present, self._layout.export_rows(numbers, times, values))


def _is_present(rows: Mapping[int, ReferenceRow], keys: torch.Tensor) -> NDArray[np.bool_]:
    return np.array([key in rows for key in keys.tolist()], np.bool_)


def _split_keys(
    rows: Mapping[int, ReferenceRow], changed: set[int] | None
) -> tuple[bool, torch.Tensor, torch.Tensor]:
    """Return the result of a read of changed keys, of which `rows` has some."""
    keys = torch.tensor(sorted(changed or (), key=counter_random.key_hash)).long()
    present = torch.from_numpy(_is_present(rows, keys))
    return changed is None, keys[present], keys[~present]
