"""Tables: any int64 key -> a trainable row."""

import warnings

from monolith.embedding.admission import MinCount, Probabilistic, SlidingFilter
from monolith.embedding.budget import Budget
from monolith.embedding.config import NUM_PARTITIONS, Segment, TableConfig
from monolith.embedding.expiry import Expiry
from monolith.embedding.initializers import Constant, Uniform, Zeros
from monolith.embedding.optimizers import SGD, Adagrad
from monolith.embedding.reference import ReferenceTable
from monolith.embedding.rows import Applied, Entries, Rows
from monolith.embedding.sweep import BackgroundSweep
from monolith.ops.native import load_native

try:
    load_native()  # its error names the file, the loader's reason and what to do
    from monolith.embedding.table import Table
except ImportError as error:
    warnings.warn(
        "[monolith.embedding] Table is the slow ReferenceTable, without the compiled core: "
        f"{error}",
        RuntimeWarning,
        stacklevel=2,
    )
    Table = ReferenceTable  # type: ignore[assignment, misc]

__all__ = [
    "Adagrad",
    "Applied",
    "BackgroundSweep",
    "Budget",
    "Constant",
    "Entries",
    "Expiry",
    "MinCount",
    "NUM_PARTITIONS",
    "Probabilistic",
    "ReferenceTable",
    "Rows",
    "SGD",
    "Segment",
    "SlidingFilter",
    "Table",
    "TableConfig",
    "Uniform",
    "Zeros",
]
