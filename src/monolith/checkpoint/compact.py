"""Make a full checkpoint of a link, from the files of its chain alone."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from monolith.checkpoint.commit import CheckpointFiles
from monolith.checkpoint.load import open_checkpoint
from monolith.checkpoint.manifest import CheckpointManifest
from monolith.checkpoint.save import WriteOptions, names_of_files
from monolith.checkpoint.storage import storage_errors
from monolith.table.disk.arrow import make_batch, metadata_of, row_schema, tensors_of_rows
from monolith.table.disk.block_reader import FileReader
from monolith.table.disk.buffers import Buffers
from monolith.table.disk.call_arguments import checked_path
from monolith.table.disk.contents import config_of, open_plans
from monolith.table.disk.layers import Layers
from monolith.table.disk.plan import Source, TablePlan
from monolith.table.disk.table_files import SaveJob, write_file
from monolith.table.disk.table_manifest import VERSION, FileEntry, TableEntry
from monolith.table.disk.table_save import checked_rate
from monolith.table.disk.workers import Work
from monolith.table.disk.writer import Throttle

_WHERE = "[checkpoint.compact]"


def compact(
    prefix: "str | os.PathLike[str]",
    options: WriteOptions | None = None,
    *,
    lock: "contextlib.AbstractContextManager[object] | None" = None,
) -> CheckpointManifest:
    """Replace a link by a full checkpoint of the same content, in one step.

    The chain is read and the new files are written on the calling thread, while other checkpoints
    are written into the directory; the link can be restored all the while, and links that continue
    it stay valid. A full checkpoint stays as it is.

    Args:
        prefix: `<directory>/<name>` of the link.
        options: rate, progress and control; a compaction has one thread.
        lock: lock of this process on the directory, held while the link is replaced.

    Returns:
        The manifest of the full checkpoint.

    Raises:
        NotFoundError: the link or a checkpoint of its chain is missing.
        DataLossError: a file is damaged.
        OpError: the files cannot be written; the link is as it was.
        FailedPreconditionError: another save writes into the directory at the end.
    """
    path, options = checked_path(_WHERE, prefix), options or WriteOptions()
    rate = checked_rate(_WHERE, options.max_bytes_per_second)
    with storage_errors("checkpoint.compact", f"compact {path}"), contextlib.ExitStack() as stack:
        checkpoint = open_checkpoint(path)
        manifest = checkpoint.manifest
        if manifest.base is None:
            return manifest
        files = CheckpointFiles(path)
        work = Work(sum(manifest.base.num_rows.values()), options.progress, options.control)
        stack.callback(work.close)
        job = SaveJob(files.create, [], Throttle(rate, wait=work.wait), work, [])
        try:
            with open_plans(checkpoint, None) as plans:
                tables = [_compacted(job, entry, plans[entry.name]) for entry in manifest.tables]
            work.finish()
            full = replace(manifest, tables=tables, base=None)
            with lock or contextlib.nullcontext():
                files.replace_manifest(full)
        except BaseException:
            files.abandon()
            raise
    return full


def _compacted(job: SaveJob, entry: TableEntry, plan: TablePlan) -> TableEntry:
    """Write all rows of a table. Return its entry, with the candidates of the link."""
    layers = Layers(plan, FileReader(plan, config_of(plan), Buffers()))
    name_of = names_of_files(entry.name)
    sources = layers.files
    rows = []
    for i, source in enumerate(sources):
        runs = source.file.partitions
        metadata = metadata_of(VERSION, entry.config, entry.num_update_calls, runs)
        schema = row_schema(config_of(plan), metadata)
        name = name_of("rows", (i, len(sources)), runs)
        content = schema, _batches(layers, source, schema)
        rows.append(write_file(job, name, "rows", runs, content))
    candidates = [file for file in entry.files if file.kind == "candidates"]
    return replace(entry, num_rows=_count(rows), files=(*rows, *candidates))


def _batches(layers: Layers, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for rows in layers.rows(source):
        yield make_batch(schema, tensors_of_rows(rows))


def _count(files: list[FileEntry]) -> int:
    return sum(file.num_rows for file in files)
