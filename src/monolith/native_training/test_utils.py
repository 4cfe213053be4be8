"""Give servers, configs and profiles for tests."""

from monolith.cluster.servers import LocalServers
from monolith.native_training.tables.entry_config import (
    CombineAsSegment,
    CuckooHashTableConfig,
    EntryConfig,
    HashTableConfigInstance,
)
from monolith.native_training.tables.entry_parts import (
    Fp32Compressor,
    StochasticRoundingFloat16OptimizerWrapper,
)
from monolith.observe.profiler import profile_it
from monolith.table import Zeros
from monolith.table.optimizers import SGD

__all__ = ["create_test_ps_cluster", "generate_test_hash_table_config", "profile_it"]


def generate_test_hash_table_config(
    dim: int = 2, use_float16: bool = False, learning_rate: float = 1.0
) -> HashTableConfigInstance:
    """Return the config of a table of zeros with SGD; half precision if `use_float16`."""
    optimizer = StochasticRoundingFloat16OptimizerWrapper(SGD()) if use_float16 else SGD()
    segment = CombineAsSegment(dim, Zeros(), optimizer, Fp32Compressor())
    config = CuckooHashTableConfig().table_config(EntryConfig([segment]))
    return HashTableConfigInstance(config, [learning_rate])


def create_test_ps_cluster(num_ps: int) -> tuple[LocalServers, dict[str, list[str]]]:
    """Return servers, which the test closes, and the description of their cluster."""
    servers = LocalServers(num_ps)
    return servers, servers.cluster()
