"""Import rows of other systems into the tables of a task (docs/bring_your_model.md)."""

from monolith.train.imported_rows.import_target import (
    ImportCounts,
    ImportTarget,
    open_target,
    rows_with_new_state,
)
from monolith.train.imported_rows.vector_import import import_vectors

__all__ = ["ImportCounts", "ImportTarget", "import_vectors", "open_target", "rows_with_new_state"]
