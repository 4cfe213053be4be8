"""Tables: any int64 key -> a trainable row."""

import warnings

from monolith.embedding.config import NUM_PARTITIONS, Segment, TableConfig
from monolith.embedding.initializers import Constant, Uniform, Zeros
from monolith.embedding.optimizers import SGD, Adagrad
from monolith.embedding.reference import ReferenceTable
from monolith.embedding.rows import Applied, Entries, Rows

try:
    from monolith.embedding.table import Table
except ImportError as error:
    warnings.warn(
        f"[monolith.embedding] expected the native extension, got {type(error).__name__}: {error}; "
        "Table is the slow ReferenceTable until the package is built: "
        "pip install --force-reinstall monolith-torch",
        RuntimeWarning,
        stacklevel=2,
    )
    Table = ReferenceTable  # type: ignore[assignment, misc]

__all__ = [
    "NUM_PARTITIONS",
    "SGD",
    "Adagrad",
    "Applied",
    "Constant",
    "Entries",
    "ReferenceTable",
    "Rows",
    "Segment",
    "Table",
    "TableConfig",
    "Uniform",
    "Zeros",
]
