"""Samples in: sources, parsing, batching."""

from monolith.data import operations
from monolith.data.batch import Batch
from monolith.data.columns import Columns, DenseColumn, IdColumn, Label
from monolith.data.file_queue import FileQueue
from monolith.data.hashing import cross_ids, hash_strings
from monolith.data.memory import as_table
from monolith.data.patterns import expand_template, gen_patterns, matching_patterns
from monolith.data.pipeline import Batches, Pipeline
from monolith.data.sources import arrow, arrow_table, csv, from_files, jsonl, parquet, synthetic
from monolith.data.str_queue import CriticalSection, StrQueue

__all__ = [
    "Batch",
    "Batches",
    "Columns",
    "CriticalSection",
    "DenseColumn",
    "FileQueue",
    "IdColumn",
    "Label",
    "Pipeline",
    "StrQueue",
    "arrow",
    "arrow_table",
    "as_table",
    "cross_ids",
    "csv",
    "expand_template",
    "from_files",
    "gen_patterns",
    "hash_strings",
    "jsonl",
    "matching_patterns",
    "operations",
    "parquet",
    "synthetic",
]
