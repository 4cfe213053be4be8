"""Import path of the reference system; see `monolith.embedding.hash_table` and `.fused`."""

from monolith.embedding.fused import fused_apply_gradients as _fused_apply_gradients
from monolith.embedding.fused import fused_lookup as fused_lookup
from monolith.embedding.hash_table import HashTable as HashTable

fused_apply_gradient = _fused_apply_gradients
