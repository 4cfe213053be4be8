"""Exports in chunks: which hashes, how many rows at once."""

from collections.abc import Callable, Iterable, Iterator

from monolith.embedding import checks
from monolith.embedding.config import TableConfig
from monolith.embedding.counter_random import key_hash
from monolith.embedding.rows import Rows

__all__ = ["ExportChunk", "export_chunks"]

ExportChunk = Callable[[int, int, int], Rows]
"""(first, last, limit) -> at most `limit` rows whose hash is in [first, last], ascending."""


def export_chunks(
    config: TableConfig,
    partitions: Iterable[int] | None,
    chunk_rows: int,
    after: int | None,
    export_chunk: ExportChunk,
) -> Iterator[Rows]:
    """Rows of the partitions behind the key `after`, in chunks; the arguments are checked now."""
    chunk_rows = checks.check_integer(config, "export", "chunk_rows", chunk_rows)
    if chunk_rows < 1:
        raise ValueError(
            f"[Table.export] expected chunk_rows >= 1, got {chunk_rows} (table {config.name!r})"
        )
    ranges = checks.hash_ranges(config, partitions)
    if after is not None:
        start = key_hash(checks.check_key(config, "export", "after", after)) + 1
        ranges = [(max(first, start), last) for first, last in ranges if last >= start]
    return _chunks(ranges, chunk_rows, export_chunk)


def _chunks(
    ranges: list[tuple[int, int]], chunk_rows: int, export_chunk: ExportChunk
) -> Iterator[Rows]:
    for first, last in ranges:
        start = first
        while start <= last:
            rows = export_chunk(start, last, chunk_rows)
            if not len(rows):
                break
            yield rows
            start = key_hash(int(rows.keys[-1])) + 1
