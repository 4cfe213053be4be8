"""Import path of the reference system; see `monolith.embedding.multi_hash_table`."""

from monolith.embedding.multi_hash_table import MultiHashTable as MultiHashTable
