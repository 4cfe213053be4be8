"""Describe the dumps of a checkpoint without a task."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from monolith.checkpoint.reference_dump.dump_files import DumpFolder, DumpSet
from monolith.checkpoint.reference_dump.dump_layout import SegmentFacts, segments_in
from monolith.checkpoint.reference_dump.dump_metadata import Runs, read_runs
from monolith.checkpoint.reference_dump.dump_rows import RowCounts, RowReader, slots_of
from monolith.checkpoint.reference_dump.dump_stream import DumpStream
from monolith.errors import DataLossError
from monolith.table.rules import NUM_SLOTS
from monolith.util.protobuf import fields

_MAX_SLOTS = 4096  # keys with more slots are hashes, not fids
_NUM_ELEMENTS = 3  # field of HashFilterSplitMetaDump


@dataclass(kw_only=True)
class DumpSummary(RowCounts):
    """A table in dumps.

    Args:
        name: name of the table; in dumps of one table, with its parameter server.
        kind: "table" in dumps of one table, "tables" in dumps of many.
        segments: segments that the first row shows.
        slots: slot -> number of rows, the largest first; empty if ids do not look like fids v2.
    """

    name: str
    kind: str
    segments: Sequence[SegmentFacts] = ()
    slots: dict[int, int] = field(default_factory=dict)


def describe_dumps(
    folder: DumpFolder, *, advance: Callable[[int], None] = lambda num_bytes: None
) -> list[DumpSummary]:
    """Return summaries of the tables in the complete dumps of a checkpoint; reads every row.

    Args:
        folder: dumps of the checkpoint.
        advance: called with the number of bytes of files that were read.

    Raises:
        DataLossError: a file is damaged.
    """
    summaries: dict[tuple[str, str], DumpSummary] = {}
    slots: dict[tuple[str, str], _SlotCounts] = defaultdict(_SlotCounts)
    reader, num_bytes = RowReader(None), 0
    for dumps in folder.sets:
        for file, runs in _files_of(folder, dumps):
            stream = DumpStream(folder, file, is_compressed=dumps.kind == "tables")
            for name, num_records in runs:
                key = dumps.kind, name
                summary = summaries.setdefault(key, DumpSummary(name=name, kind=dumps.kind))
                first = stream.peek() if num_records != 0 and not summary.segments else b""
                damage = stream.damage("an EntryDump message", "other bytes")  # of this record
                for rows in reader.read(stream, num_records):
                    summary.add(rows.times)
                    slots[key].add(rows.keys)
                    advance(num_bytes + stream.num_bytes)
                if first:  # the reader has checked it, but for its optimizer state
                    try:
                        summary.segments = segments_in(first)
                    except DataLossError as error:
                        raise damage from error
            stream.check_end()
            num_bytes += stream.num_bytes
    for key, counts in slots.items():
        summaries[key].slots = counts.as_dict()
    return list(summaries.values())


class _SlotCounts:
    def __init__(self) -> None:
        self._counts = torch.zeros(NUM_SLOTS, dtype=torch.int64, device="cpu")
        self._has_negative = False

    def add(self, keys: torch.Tensor) -> None:
        self._counts += torch.bincount(slots_of(keys), minlength=NUM_SLOTS)
        self._has_negative |= bool((keys < 0).any())

    def as_dict(self) -> dict[int, int]:
        """Return the number of rows of each slot; nothing for keys that are hashes."""
        used = self._counts.nonzero()[:, 0].tolist()
        if self._has_negative or used == [0] or len(used) > _MAX_SLOTS:
            return {}
        counts = {slot: int(self._counts[slot]) for slot in used}
        return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _files_of(folder: DumpFolder, dumps: DumpSet) -> list[tuple[str, Runs]]:
    """Return the files with rows of a complete dump, and the tables in each."""
    if dumps.problem or dumps.kind == "filter":
        return []
    if dumps.kind == "table":
        return [(file, [(dumps.suffix, None)]) for file in dumps.files]
    pairs = zip(dumps.files, dumps.metadata, strict=True)
    return [(file, read_runs(folder, metadata)) for file, metadata in pairs]


def num_cells(folder: DumpFolder, dumps: DumpSet) -> int:
    """Return the number of used cells of a filter.

    Raises:
        DataLossError: a file is damaged.
    """
    count = 0
    for file in dumps.files:
        stream = DumpStream(folder, file, is_compressed=False)
        try:
            number = dict(fields(stream.peek())).get(_NUM_ELEMENTS, 0)
        except DataLossError as error:
            raise stream.damage("HashFilterSplitMetaDump", "another message") from error
        count += number if isinstance(number, int) else 0
    return count
