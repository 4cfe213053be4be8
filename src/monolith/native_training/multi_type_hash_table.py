"""Import path of the reference system; see `monolith.embedding.multi_hash_table`."""

from monolith.embedding.merged_table import MergedMultiTypeHashTable as MergedMultiTypeHashTable
from monolith.embedding.multi_hash_table import MultiHashTable as _MultiHashTable
from monolith.embedding.multi_hash_table import MultiTypeHashTable as MultiTypeHashTable

RawMultiTypeHashTable = _MultiHashTable
