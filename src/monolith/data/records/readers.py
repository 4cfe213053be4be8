"""Sources of records: each function returns a `Pipeline`."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from monolith.data.batch import Batch
from monolith.data.batch_maker import BatchMaker
from monolith.data.columns import Columns
from monolith.data.convert import BadSamples, Origin, to_block
from monolith.data.files.file_queue import QueueReader
from monolith.data.files.listing import Paths
from monolith.data.pipeline import Pipeline
from monolith.data.records.decoder import RecordFormat
from monolith.data.records.record_columns import RecordColumns
from monolith.data.sources import OnError, from_files
from monolith.errors import DataLossError


def from_records(
    paths: Paths | QueueReader,
    file_format: RecordFormat,
    *,
    columns: Columns | None = None,
    label: str | Sequence[str] | None = None,
    on_error: OnError = "raise",
) -> Pipeline:
    """Read samples of files of records.

    Args:
        paths: files, globs or folders, on local disks or any file system of fsspec.
        file_format: format of the files.
        columns: columns to read; None chooses all columns of the first records.
        label: name of the label column, or several names; only without `columns`.
        on_error: whether a bad record raises an error, or is skipped and counted. A file in which
            the next record cannot be located is an error in both cases.

    Raises:
        NotFoundError: a path matches no file.
        ValueError: two arguments exclude each other, or records cannot give a column.
    """
    if columns is not None:
        RecordColumns(columns)  # refuses columns that records cannot give
    return from_files(paths, file_format, columns=columns, label=label, on_error=on_error)


def _records(
    kind: str, paths: Paths | QueueReader, options: dict[str, Any], **format_options: Any
) -> Pipeline:
    """Read records with options of the format and of `from_records`, told apart by their names."""
    names = {field.name for field in fields(RecordFormat)} - {"kind", *format_options}
    format_options |= {name: value for name, value in options.items() if name in names}
    others = {name: value for name, value in options.items() if name not in names}
    return from_records(paths, RecordFormat(kind, **format_options), **others)


def examples(paths: Paths | QueueReader, **options: Any) -> Pipeline:
    """Read samples of Monolith's `Example`, one sample per record.

    Columns are the features by name, `label`, `instance_weight`, `data_source_key`, and
    `line_id.<field>` such as `line_id.req_time`.

    Args:
        paths: files, as in `from_records`.
        options: options of `RecordFormat` and of `from_records`.
    """
    return _records("example", paths, options)


def example_batches(paths: Paths | QueueReader, **options: Any) -> Pipeline:
    """Read samples of Monolith's `ExampleBatch`, many samples per record; see `examples`."""
    return _records("example_batch", paths, options)


def instances(paths: Paths | QueueReader, **options: Any) -> Pipeline:
    """Read samples of Monolith's `Instance`; flat fids are columns `slot_<n>` or `fc_slot_<n>`.

    See `examples` for everything else.
    """
    return _records("instance", paths, options)


def tfrecords(paths: Paths | QueueReader, **options: Any) -> Pipeline:
    """Read samples of TFRecord files of `tf.train.Example`; columns are its features.

    Args:
        paths: files, as in `from_records`.
        options: options of `RecordFormat` except `framing`, and of `from_records`.
    """
    return _records("tf_example", paths, options, framing=None)


class RecordParser:
    """Converts records in memory, such as requests or messages, to batches. Not thread-safe.

    Args:
        kind: "example", "example_batch", "instance" or "tf_example".
        columns: columns to read.
        keep_fid_v1: whether fids v1 are kept, as in `examples`.

    Raises:
        ValueError: records cannot give a column.

    Example:
        >>> parser = RecordParser("example", Columns(["user"]))
        >>> parser([b""]).features["user"].to_lists()
        [[]]
    """

    def __init__(self, kind: str, columns: Columns, *, keep_fid_v1: bool = False) -> None:
        self._columns, self._wanted = columns, RecordColumns(columns)
        self._batches = BatchMaker(columns)
        RecordFormat(kind)  # checks the kind
        self._decoder = self._wanted.decoder(
            kind, 0, max_bytes=0, keeps_fid_v1=keep_fid_v1, skips=False
        )

    def __call__(self, records: Sequence[bytes]) -> Batch:
        """Return the batch of records.

        Raises:
            DataLossError: a record is bad.
        """
        data = np.frombuffer(b"".join(records), np.uint8)
        splits = np.zeros(len(records) + 1, np.int64)
        np.cumsum([len(record) for record in records], out=splits[1:])
        block = self._decoder.decode_split(data.ctypes.data, splits.ctypes.data, len(records))
        for number, at, _, text, _ in block.bad:
            raise DataLossError(
                f"[RecordParser] record {number}, byte {at - int(splits[number])}: {text}"
            )
        origin = Origin("records", 0)
        rows = to_block(self._wanted.rows(block), self._columns, origin, BadSamples())
        return self._batches.make(rows)
