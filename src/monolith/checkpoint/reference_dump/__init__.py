"""Describe and import dumps of tables of the reference system (docs/reference/dumps.md)."""

from monolith.checkpoint.reference_dump.dump_files import (
    DumpFolder,
    DumpSet,
    find_dumps,
    open_dumps,
)
from monolith.checkpoint.reference_dump.dump_import import (
    NOT_IN_DUMPS,
    DumpImport,
    ImportOptions,
    TableImport,
    import_dumps,
)
from monolith.checkpoint.reference_dump.dump_summary import DumpSummary, describe_dumps, num_cells
from monolith.checkpoint.reference_dump.dump_tables import FILTER_REASON, Choice

__all__ = [
    "Choice",
    "DumpFolder",
    "DumpImport",
    "DumpSet",
    "DumpSummary",
    "FILTER_REASON",
    "ImportOptions",
    "NOT_IN_DUMPS",
    "TableImport",
    "describe_dumps",
    "find_dumps",
    "import_dumps",
    "num_cells",
    "open_dumps",
]
