"""Read vectors of other systems, and write rows of a checkpoint for other systems.

`train.imported_rows` imports what is read here; `monolith import` and `monolith export` are the
commands (docs/bring_your_model.md).
"""

from monolith.checkpoint.vectors.checkpoint_rows import CheckpointTable, saved_tables
from monolith.checkpoint.vectors.row_files import write_row_files
from monolith.checkpoint.vectors.torchrec_state import write_torchrec_state

__all__ = ["CheckpointTable", "saved_tables", "write_row_files", "write_torchrec_state"]
