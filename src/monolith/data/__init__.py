"""Samples in: sources, parsing, batching."""

from monolith.data.batch import Batch
from monolith.data.columns import Columns, DenseColumn, IdColumn, Label
from monolith.data.framing import Framing, data_source_key, java_hash_code
from monolith.data.hashing import cross_ids, hash_strings
from monolith.data.memory import as_table
from monolith.data.pipeline import Batches, Pipeline
from monolith.data.record_format import RecordFormat
from monolith.data.record_sources import (
    INVALID_LABEL,
    RecordParser,
    example_batches,
    examples,
    from_records,
    instances,
    tfrecords,
)
from monolith.data.record_writer import RecordWriter
from monolith.data.sources import arrow, arrow_table, csv, from_files, jsonl, parquet, synthetic

__all__ = [
    "Batch",
    "Batches",
    "Columns",
    "DenseColumn",
    "Framing",
    "INVALID_LABEL",
    "IdColumn",
    "Label",
    "Pipeline",
    "RecordFormat",
    "RecordParser",
    "RecordWriter",
    "arrow",
    "arrow_table",
    "as_table",
    "cross_ids",
    "csv",
    "data_source_key",
    "example_batches",
    "examples",
    "from_files",
    "from_records",
    "hash_strings",
    "instances",
    "java_hash_code",
    "jsonl",
    "parquet",
    "synthetic",
    "tfrecords",
]
