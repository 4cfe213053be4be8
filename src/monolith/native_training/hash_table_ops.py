"""Give `HashTable`, its listeners of checkpoints, and the fused calls over several hash tables."""

from monolith.native_training.saver.listeners import (
    HashTableCheckpointRestorerListener as HashTableCheckpointRestorerListener,
)
from monolith.native_training.saver.listeners import (
    HashTableCheckpointSaverListener as HashTableCheckpointSaverListener,
)
from monolith.native_training.tables.fused import fused_apply_gradients as _fused_apply_gradients
from monolith.native_training.tables.fused import fused_lookup as fused_lookup
from monolith.native_training.tables.hash_table import HashTable as HashTable

fused_apply_gradient = _fused_apply_gradients
