"""Import path of the reference system; see `monolith.embedding.touched_key_set`."""

from monolith.embedding.touched_key_set import *  # noqa: F403
