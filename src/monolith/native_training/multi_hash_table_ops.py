"""Give `MultiHashTable`, several tables in one call, and its listeners of checkpoints."""

from monolith.native_training.saver.listeners import (
    HashTableCheckpointRestorerListener as _HashTableCheckpointRestorerListener,
)
from monolith.native_training.saver.listeners import (
    HashTableCheckpointSaverListener as _HashTableCheckpointSaverListener,
)
from monolith.native_training.tables.multi_hash_table import MultiHashTable as MultiHashTable

MultiHashTableCheckpointSaverListener = _HashTableCheckpointSaverListener
MultiHashTableCheckpointRestorerListener = _HashTableCheckpointRestorerListener
