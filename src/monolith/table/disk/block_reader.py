"""Reader of the files of a save that checks size, checksum, schema and every number."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import torch

from monolith.errors import DataLossError
from monolith.table._checks import check_rows
from monolith.table.config import TableConfig
from monolith.table.disk.arrow import (
    candidate_schema,
    columns_of_batch,
    row_schema,
    rows_of_batch,
    tombstone_schema,
)
from monolith.table.disk.buffers import Buffers
from monolith.table.disk.plan import Source, TablePlan
from monolith.table.disk.table_manifest import VERSION, is_readable
from monolith.table.eviction import check_candidates
from monolith.table.rows import Rows, no_rows

_BAD_ARROW = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError)


class FileReader:
    """Reads the files of a table.

    Args:
        plan: tables and partitions to load.
        config: settings of the table.
        buffers: memory to read into; the next step of a method overwrites its previous result.
        is_read_again: whether the files are re-read soon.
    """

    def __init__(
        self,
        plan: TablePlan,
        config: TableConfig,
        buffers: Buffers,
        *,
        is_read_again: bool = False,
    ) -> None:
        self._plan, self._buffers = plan, buffers
        self._config = plan.table_config or config  # files are those of the whole table
        self._is_read_again = is_read_again

    def no_rows(self) -> Rows:
        """Return a chunk of no rows, with the columns of the table."""
        return no_rows(self._config)

    def rows(self, source: Source) -> Iterator[Rows]:
        """Yield the checked rows of a file that the plan includes, batch by batch.

        Raises:
            NotFoundError: the file does not exist.
            DataLossError: the file is not the file that the manifest names.
        """
        with self._batches(source, row_schema(self._config)) as (batches, memory):
            for batch in batches:
                with _file_errors(source):
                    rows = rows_of_batch(batch, memory, self._config)
                    check_rows(self._config, rows)
                yield self._wanted_rows(source, rows)

    def candidates(self, source: Source) -> dict[str, torch.Tensor]:
        """Return the checked candidates of a file that the plan includes; raises as `rows`."""
        with self._batches(source, candidate_schema(self._config)) as (batches, memory):
            with _file_errors(source):
                parts = [columns_of_batch(batch, memory) for batch in batches]
                names = candidate_schema(self._config).names
                empty = torch.empty(0, dtype=torch.int64, device="cpu")
                columns = {name: torch.cat([empty, *(p[name] for p in parts)]) for name in names}
                check_candidates(self._config, columns)
            return self._wanted_candidates(source, columns)

    def tombstones(self, source: Source) -> torch.Tensor:
        """Return the keys of a file of removed rows in new memory, int64 (n,); raises as `rows`."""
        with self._batches(source, tombstone_schema()) as (batches, memory):
            with _file_errors(source):
                parts = [columns_of_batch(batch, memory)["key"] for batch in batches]
            keys = torch.cat([torch.empty(0, dtype=torch.int64, device="cpu"), *parts])
            return keys if self._plan.wants_all(source.file) else keys[self._plan.wants(keys)]

    @contextmanager
    def _batches(
        self, source: Source, schema: pa.Schema
    ) -> Iterator[tuple[list[pa.RecordBatch], torch.Tensor]]:
        file = source.file
        size = source.folder.size(file.path)
        if size != file.num_bytes:
            raise _damage(source, f"{file.num_bytes} bytes", f"{size}")
        with self._buffers.lend(size) as memory:
            _, crc = source.folder.read_into(
                file.path, memory.numpy(), is_read_again=self._is_read_again
            )
            if f"{crc:08x}" != file.crc32c:
                raise _damage(source, f"checksum {file.crc32c}", f"{crc:08x}")
            with _file_errors(source):
                batches = _open_batches(source, memory, schema)
            yield batches, memory

    def _wanted_rows(self, source: Source, rows: Rows) -> Rows:
        if self._plan.wants_all(source.file):
            return rows
        return rows.take(self._plan.wants(rows.keys))

    def _wanted_candidates(
        self, source: Source, columns: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        if self._plan.wants_all(source.file):
            return columns
        if "partition" in columns:
            is_included = torch.from_numpy(self._plan.is_wanted[columns["partition"].numpy()])
            if "shard" in columns and self._plan.shard is not None:
                is_included &= columns["shard"] == self._plan.shard[1]
        else:
            is_included = self._plan.wants(columns["key"])
        return {name: column[is_included] for name, column in columns.items()}


def _open_batches(source: Source, memory: torch.Tensor, schema: pa.Schema) -> list[pa.RecordBatch]:
    reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(memory.numpy())))
    version = int((reader.schema.metadata or {}).get(b"monolith.format_version", b"0"))
    if not is_readable(version):
        raise _damage(source, f"format version {VERSION} or the one before", str(version))
    if not reader.schema.equals(schema, check_metadata=False):
        raise _damage(source, f"columns {_columns(schema)}", _columns(reader.schema))
    batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    num_rows = sum(batch.num_rows for batch in batches)
    if num_rows != source.file.num_rows:
        raise _damage(source, f"{source.file.num_rows} rows", str(num_rows))
    return batches


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _damage(source: Source, expected: str, got: str) -> DataLossError:
    return DataLossError(
        f"[load_tables] expected {expected}, got {got} ({source.where}); it is damaged or foreign"
    )


@contextmanager
def _file_errors(source: Source) -> Iterator[None]:
    """Add the name of the file to errors about bad bytes, of pyarrow and of the checks."""
    try:
        yield
    except _BAD_ARROW as error:
        raise DataLossError(
            f"[load_tables] expected an Arrow file of the table, got: {error} ({source.where})"
        ) from error
