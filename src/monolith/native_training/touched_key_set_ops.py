"""Give `TouchedKeySet`: the keys that were touched since the last `steal`."""

from monolith.native_training.tables.touched_key_set import (
    TOUCHED_KEY_SET_CAPACITY,
    TOUCHED_KEY_SET_CONCURRENCY_LEVEL,
    TouchedKeySet,
    create_touched_key_set,
)

__all__ = [
    "TOUCHED_KEY_SET_CAPACITY",
    "TOUCHED_KEY_SET_CONCURRENCY_LEVEL",
    "TouchedKeySet",
    "create_touched_key_set",
]
