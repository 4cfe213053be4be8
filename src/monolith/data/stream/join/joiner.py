"""`OnlineJoiner`: impressions and actions in, labelled samples out, with a state that is exact."""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from monolith.data.cursor import State
from monolith.data.operations.label_columns import times_weight
from monolith.data.operations.sample_rows import Ids, column_of, positions_in, set_column
from monolith.data.stream.join.impressions import Impressions
from monolith.data.stream.join.join_settings import DECIDER, MAX_TIME, JoinSettings, kind_id
from monolith.data.stream.join.journal import Journal, Meta, Place, Record
from monolith.data.stream.join.key_draws import KeyDraws
from monolith.data.stream.join.pages import Pages
from monolith.data.stream.join.waiting_actions import WaitingActions
from monolith.data.stream.join.window_join import IMPRESSION, OTHER, Events, Left, WindowJoin
from monolith.errors import DataLossError, FailedPreconditionError

_WHERE = "[OnlineJoiner]"
_SAMPLES = ("positives", "negatives", "dropped_negatives")


class OnlineJoiner:
    """Joins impressions and actions by key within a window of event time. Not thread-safe.

    An impression becomes one sample: its columns, a label for each entry of `settings.labels`, and
    the correction of `settings.negative_rate`. The sample leaves when the watermark has passed the
    end of its window: the newest event time minus the lateness, of the input where this is least.

    With a folder, every event is written to the folder before it is handled. So `state()` is small
    and exact after each call, survives a kill of the process, and a resumed joiner first repeats
    what the joiner before it did after this state (`replay`), even if inputs would now come in
    another order. A loss of power can lose the last events; the state is then refused.

    Args:
        settings: which events belong together.
        num_inputs: number of inputs.
        folder: folder for the events and the snapshots of this joiner alone; None keeps everything
            in memory, without a state.
        state: result of `state()` of a joiner with equal settings and this folder.
        save_every: number of events between two snapshots; a resumed joiner handles up to as many
            events again.
        num_kept: number of snapshots that are kept, at least 2; an older state cannot be resumed.
        memory_bytes: largest size of features of open impressions in memory; with a folder, those
            beyond are read from it.

    Raises:
        ValueError: an argument does not fit.
        FailedPreconditionError: the state is of a joiner with other settings.
        NotFoundError: the files of the state are gone.
        DataLossError: the files of the state are damaged.

    Example:
        >>> settings = JoinSettings("request", window=10, labels={"click": [1]})
        >>> joiner = OnlineJoiner(settings)
        >>> shown = {"request": [7, 8], "item": [3, 4], "time": [100, 101]}
        >>> joiner.add(pa.record_batch(shown), 0)
        >>> joiner.add(pa.record_batch({"request": [8], "kind": [1], "time": [105]}), 1)
        >>> joiner.finish().to_pylist()[1]
        {'request': 8, 'item': 4, 'time': 101, 'click': 1.0}
    """

    def __init__(
        self,
        settings: JoinSettings,
        num_inputs: int = 2,
        *,
        folder: Path | str | None = None,
        state: State | None = None,
        save_every: int = 1_000_000,
        num_kept: int = 4,
        memory_bytes: int = 1 << 30,
    ) -> None:
        for name, value, least in (
            ("num_inputs", num_inputs, 1),
            ("save_every", save_every, 1),
            ("num_kept", num_kept, 2),
            ("memory_bytes", memory_bytes, 0),
        ):
            if value < least:
                raise ValueError(f"{_WHERE} expected {name} of at least {least}, got {value}")
        if state is not None and folder is None:
            raise ValueError(
                f"{_WHERE} expected the folder of the state, got none; give the folder of the "
                "joiner that was saved"
            )
        self._settings, self._save_every = settings, save_every
        self._join = WindowJoin(
            settings.window, settings.lateness, settings.leaves_at_once, num_inputs
        )
        self._impression = None if settings.impression is None else kind_id(settings.impression)
        self._positions: list[Any] = [None] * num_inputs
        self._samples = dict.fromkeys(_SAMPLES, 0)
        self._tail: deque[Record] = deque()
        self._num_records = self._num_events = 0
        self._journal: Journal | None = None
        base = None if state is None else state["snapshot"]
        if folder is not None:
            self._journal = Journal(Path(folder), num_kept, base)
        self._pages = Pages(self._journal, memory_bytes)
        if state is not None:
            self._resume(state)
        self._save()

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of events and samples, by what became of them; part of the state."""
        return {**self._join.counts, **self._samples}

    @property
    def watermark(self) -> int:
        """Event time that the watermark has reached; far below 0 before the first event."""
        return self._join.watermark.value

    @property
    def newest(self) -> list[int]:
        """Newest event time of each input; far below 0 before its first event."""
        return list(self._join.watermark.newest)

    @property
    def memory_bytes(self) -> int:
        """Bytes of features of open impressions that are in memory."""
        return self._pages.num_bytes

    def add(
        self, events: pa.RecordBatch, source: int = 0, position: Any = None
    ) -> pa.RecordBatch | None:
        """Take events of an input; return the samples that leave, or None.

        A block without the column `settings.kind` has impressions. In a block with this column,
        rows of the kind `settings.impression` are impressions, the others are actions.

        Args:
            events: events, in the order in which they came.
            source: number of the input.
            position: position of the input after these events, as JSON, for `positions`.

        Raises:
            ValueError: a column is missing, or a time is out of range.
            TypeError: a column has another type.
        """
        self._check_call(source)
        return self._add(events, source, position)

    def _add(self, events: pa.RecordBatch, source: int, position: Any) -> pa.RecordBatch | None:
        block, shown = self._checked(events)
        place = self._note({"source": source, "position": position}, block)
        samples = self._take(block, shown, source, place)
        self._positions[source] = position
        self._num_events += block.num_rows
        if self._num_events >= self._save_every:
            self._save()
        return samples

    def leave_out(self, source: int) -> pa.RecordBatch | None:
        """Do not wait for an input, which is idle or at its end, until it has another event.

        The watermark then follows the other inputs. Returns the samples that leave, or None.
        """
        self._check_call(source)
        return self._leave_out(source)

    def _leave_out(self, source: int) -> pa.RecordBatch | None:
        self._note({"leave_out": source}, None)
        return self._sampled(self._join.leave_out(source))

    def finish(self) -> pa.RecordBatch | None:
        """Close all windows, at the end of all inputs; return the samples that leave, or None."""
        self._check_call(0)
        return self._finish()

    def _finish(self) -> pa.RecordBatch | None:
        self._note({"finish": True}, None)
        return self._sampled(self._join.finish())

    def _check_call(self, source: int) -> None:
        if not 0 <= source < len(self._positions):
            raise ValueError(
                f"{_WHERE} expected an input from 0 to {len(self._positions) - 1}, got {source}"
            )
        if self._tail:
            raise FailedPreconditionError(
                f"{_WHERE} expected a joiner that repeated all calls after its state, got "
                f"{len(self._tail)} calls left; take the results of replay() first"
            )

    def _checked(self, events: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return the columns that are used, and which rows are impressions."""
        settings = self._settings
        is_mixed = settings.kind in events.schema.names
        for name in (settings.key, settings.time, *([settings.kind] if is_mixed else [])):
            column = column_of(_WHERE, events, name)
            if column.type != pa.int64() or column.null_count:
                raise TypeError(
                    f"{_WHERE} expected column {name!r} of int64 without missing values, got type "
                    f"{column.type} with {column.null_count} missing"
                )
        times = events.column(settings.time).to_numpy()
        if len(times) and not -MAX_TIME <= times.min() <= times.max() <= MAX_TIME:
            raise ValueError(
                f"{_WHERE} expected times of at most {MAX_TIME} either way, got {times.min()} to "
                f"{times.max()} (column {settings.time!r})"
            )
        shown = np.ones(events.num_rows, np.bool_)
        if is_mixed:
            kinds = events.column(settings.kind).to_numpy()
            shown = kinds == self._impression if self._impression is not None else ~shown
        if is_mixed and not shown.any():
            return events.select([settings.key, settings.time, settings.kind]), shown
        for name in settings.adds.names():
            if name in events.schema.names and name != settings.adds.weight:
                raise ValueError(
                    f"{_WHERE} expected impressions without a column {name!r}, which the join "
                    "adds; drop or rename it"
                )
        return events, shown

    def _take(
        self, block: pa.RecordBatch, shown: np.ndarray, source: int, place: Place | None
    ) -> pa.RecordBatch | None:
        if not block.num_rows:
            return None
        settings = self._settings
        kinds = np.full(block.num_rows, IMPRESSION)
        if settings.kind in block.schema.names:
            ids = block.column(settings.kind).to_numpy()
            kinds = np.where(shown, IMPRESSION, positions_in(ids, settings.kinds, OTHER))
        events = Events(
            block.column(settings.key).to_numpy(),
            block.column(settings.time).to_numpy(),
            kinds,
            np.arange(block.num_rows),
        )
        page = self._pages.add(block, place) if shown.any() else -1
        num_added, left = self._join.take(source, events, page)
        if page >= 0:
            self._pages.hold(page, num_added)
        samples = self._sampled(left)
        if page >= 0:
            self._pages.drop_unused(page)
        return samples

    def _sampled(self, left: Left) -> pa.RecordBatch | None:
        """Return the positives and the chosen negatives of the samples that left."""
        if not len(left.keys):
            return None
        has_action = left.kinds != 0
        kept, corrections = self._chosen(left.keys, has_action)
        num_positives = int(np.count_nonzero(has_action))
        self._samples["positives"] += num_positives
        self._samples["negatives"] += len(kept) - num_positives
        self._samples["dropped_negatives"] += len(left.keys) - len(kept)
        samples = None
        if len(kept):
            samples = self._pages.gather(left.pages[kept], left.rows[kept])
            samples = self._labelled(samples, left.kinds[kept], corrections)
        self._pages.release(left.pages)
        return samples

    def _chosen(self, keys: Ids, has_action: np.ndarray) -> tuple[Ids, Mapping[str, pa.Array]]:
        """Return the positions of the samples that are kept, and the columns of corrections."""
        places = np.arange(len(keys))
        sampler = self._settings.sampler
        if sampler is None:
            return places, {}
        columns = {DECIDER: has_action.astype(np.float32), "place": places}
        chosen = sampler(pa.record_batch(columns), KeyDraws(0, 0, keys))
        corrections = {name: chosen.column(name) for name in sampler.adds.names()}
        return chosen.column("place").to_numpy(), corrections

    def _labelled(
        self, samples: pa.RecordBatch, kinds: Ids, corrections: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        if self._settings.kind in samples.schema.names:
            samples = samples.drop_columns([self._settings.kind])
        for name, mask in self._settings.masks.items():
            samples = set_column(samples, name, (kinds & mask != 0).astype(np.float32))
        for name, column in corrections.items():
            if name == self._settings.adds.weight:
                samples = times_weight(samples, name, column.to_numpy())
            else:
                samples = set_column(samples, name, column)
        return samples

    # The state: a snapshot, and the number of records of the journal after it.

    def state(self) -> State:
        """Return the state after the last call, as JSON: `positions` are those of the inputs.

        Raises:
            FailedPreconditionError: the joiner has no folder.
        """
        if self._journal is None:
            raise FailedPreconditionError(
                f"{_WHERE} expected a folder for the state, got none; make the joiner with folder="
            )
        return {
            "snapshot": self._journal.number,
            "records": self._num_records,
            "positions": list(self._positions),
        }

    @property
    def final_positions(self) -> list[Any]:
        """Positions of the inputs after all that `replay` returns."""
        positions = list(self._positions)
        for record in self._tail:
            if "source" in record.meta:
                positions[record.meta["source"]] = record.meta["position"]
        return positions

    def replay(self) -> Iterator[pa.RecordBatch | None]:
        """Repeat the calls that the saved joiner got after the state; yield what each returns.

        The inputs then go on after these calls, at `final_positions` before the first of them.
        """
        while self._tail:
            yield self._repeat(self._tail.popleft())

    def _repeat(self, record: Record) -> pa.RecordBatch | None:
        if "leave_out" in record.meta:
            return self._leave_out(record.meta["leave_out"])
        if "finish" in record.meta:
            return self._finish()
        assert record.block is not None
        return self._add(record.block, record.meta["source"], record.meta["position"])

    def _note(self, meta: Meta, block: pa.RecordBatch | None) -> Place | None:
        self._num_records += 1
        return None if self._journal is None else self._journal.append(meta, block)

    def _fingerprint(self) -> str:
        text = f"{len(self._positions)} inputs, {self._settings!r}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _save(self) -> None:
        """Write a snapshot, and begin a log."""
        self._num_records = self._num_events = 0
        if self._journal is None:
            return
        watermark, join = self._join.watermark, self._join
        meta = {
            "settings": self._fingerprint(),
            "counts": dict(join.counts),
            "samples": self._samples,
            "watermark": [watermark.value, watermark.newest, watermark.counts],
            "positions": self._positions,
            "next_page": self._pages.next_page,
        }
        blocks = [
            join.impressions.to_arrow(),
            join.waiting.to_arrow(),
            self._pages.to_arrow(),
        ]
        self._journal.begin(meta, blocks, self._pages.first_log())

    def _resume(self, state: State) -> None:
        assert self._journal is not None
        number = state["snapshot"]
        meta, blocks = self._journal.snapshot(number, 3)
        if meta["settings"] != self._fingerprint():
            raise FailedPreconditionError(
                f"{_WHERE} expected a state of a joiner with these settings, got one of another "
                f"(snapshot {number}); make the settings as they were when the state was taken"
            )
        join = self._join
        impressions, waiting, pages = blocks
        join.impressions = Impressions.from_arrow(impressions)
        join.waiting = WaitingActions.from_arrow(waiting)
        self._pages.restore(pages, meta["next_page"])
        join.counts.update(meta["counts"])
        self._samples |= meta["samples"]
        mark = join.watermark
        mark.value, mark.newest, mark.counts = meta["watermark"]
        self._positions = meta["positions"]
        self._redo(self._journal.log_after(number), state["records"])

    def _redo(self, records: Iterator[tuple[int, Record]], count: int) -> None:
        """Handle the first records of a log again, and keep the others for `replay`."""
        num_done = 0
        for log, record in islice(records, count):
            meta, num_done = record.meta, num_done + 1
            if "leave_out" in meta:
                self._sampled(self._join.leave_out(meta["leave_out"]))
            elif "finish" in meta:
                self._sampled(self._join.finish())
            else:
                assert record.block is not None
                block, shown = self._checked(record.block)
                self._take(block, shown, meta["source"], Place(log, record.offset))
                self._positions[meta["source"]] = meta["position"]
        if num_done < count:
            raise DataLossError(
                f"{_WHERE} expected {count} records in the log of the state, got {num_done} whole "
                "ones; resume an older state"
            )
        self._tail = deque(record for _, record in records)

    def close(self) -> None:
        """Close the files of the folder; they stay."""
        if self._journal is not None:
            self._journal.close()
