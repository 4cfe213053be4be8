"""Write the rows of a checkpoint as Parquet files, for programs that know no checkpoints."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from monolith.checkpoint.vectors.checkpoint_rows import CheckpointTable
from monolith.errors import InvalidArgumentError
from monolith.table.config import segment_name, segments_of, state_columns
from monolith.table.disk.arrow import make_batch, tensors_of_rows

_GROUP_ROWS = 1 << 16


def write_row_files(
    tables: Sequence[CheckpointTable],
    directory: "str | os.PathLike[str]",
    *,
    with_state: bool = False,
    advance: Callable[[int], None] = lambda num_rows: None,
) -> dict[Path, int]:
    """Write a folder with a file `<table>.parquet` for each table; the folder appears as a whole.

    The columns are `key` and `time`, int64, and `weight/<segment>`, lists of float32.

    Args:
        tables: Tables of a checkpoint.
        directory: Folder on this machine that is new or empty.
        with_state: Whether to write the columns `state/<segment>/<name>` too.
        advance: Called with the number of rows that were written so far.

    Returns:
        Path of each file -> its number of rows.

    Raises:
        InvalidArgumentError: The folder is not empty, or is not on this machine.
    """
    counts: dict[Path, int] = {}
    num_rows = 0
    with _new_folder(directory) as folder:
        for table in tables:
            name = f"{quote(table.config.name, safe='')}.parquet"
            num_before, schema = num_rows, _schema(table, with_state)
            with pq.ParquetWriter(folder / name, schema) as writer:
                for rows in table.rows(_GROUP_ROWS):
                    writer.write_batch(make_batch(schema, tensors_of_rows(rows)))
                    advance(num_rows := num_rows + len(rows))
            counts[Path(directory, name)] = num_rows - num_before
    return counts


def _schema(table: CheckpointTable, with_state: bool) -> pa.Schema:
    config = table.config
    fields = [pa.field(name, pa.int64(), nullable=False) for name in ("key", "time")]
    sizes = {
        f"weight/{segment_name(config, i)}": (pa.float32(), segment.dim)
        for i, segment in enumerate(segments_of(config))
    }
    if with_state:
        for name, column in state_columns(config):
            sizes[name] = (getattr(pa, column.dtype)(), column.size)
    for name, (kind, size) in sizes.items():
        item = pa.field("item", kind, nullable=False)
        fields.append(pa.field(name, pa.list_(item, size), nullable=False))
    return pa.schema(fields)


def check_local(path: "str | os.PathLike[str]") -> None:
    """Refuse a path with a scheme such as s3://."""
    if "://" in os.fspath(path):
        raise InvalidArgumentError(
            f"[export] expected a path on this machine, got {os.fspath(path)!r}; copy the files "
            "afterwards"
        )


@contextlib.contextmanager
def _new_folder(directory: "str | os.PathLike[str]") -> Iterator[Path]:
    """Return a temporary folder that becomes `directory` at the end, unless the block fails.

    Raises:
        InvalidArgumentError: The folder is not empty, or is not on this machine.
    """
    check_local(directory)
    folder = Path(directory)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        got = "a folder with files" if folder.is_dir() else "a file"
        raise InvalidArgumentError(
            f"[export] expected a new or empty folder, got {got} at {os.fspath(directory)!r}"
        )
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
