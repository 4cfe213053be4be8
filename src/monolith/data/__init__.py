"""Sources of samples, and the pipelines that turn samples into batches."""

from monolith.data import operations, stream
from monolith.data.batch import Batch
from monolith.data.batches import Batches
from monolith.data.columns import INVALID_LABEL, Columns, DenseColumn, IdColumn, Label
from monolith.data.files.file_queue import FileQueue
from monolith.data.files.patterns import expand_template
from monolith.data.flows.together import FlowBatches
from monolith.data.hashing import cross_ids, hash_strings
from monolith.data.memory import as_table
from monolith.data.pipeline import Pipeline
from monolith.data.records.decoder import RecordFormat
from monolith.data.records.framing import Framing
from monolith.data.records.readers import (
    RecordParser,
    example_batches,
    examples,
    from_records,
    instances,
    tfrecords,
)
from monolith.data.records.record_writer import RecordWriter
from monolith.data.shares.division import Shares, split_source
from monolith.data.sources import arrow, arrow_table, csv, from_files, jsonl, parquet, synthetic

__all__ = [
    "Batch",
    "Batches",
    "Columns",
    "DenseColumn",
    "FileQueue",
    "FlowBatches",
    "Framing",
    "INVALID_LABEL",
    "IdColumn",
    "Label",
    "Pipeline",
    "RecordFormat",
    "RecordParser",
    "RecordWriter",
    "Shares",
    "arrow",
    "arrow_table",
    "as_table",
    "cross_ids",
    "csv",
    "example_batches",
    "examples",
    "expand_template",
    "from_files",
    "from_records",
    "hash_strings",
    "instances",
    "jsonl",
    "operations",
    "parquet",
    "split_source",
    "stream",
    "synthetic",
    "tfrecords",
]
