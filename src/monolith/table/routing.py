"""Assignment of keys to shards. Content of rows never depends on it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from monolith.table.arguments import as_integer
from monolith.table.config import NUM_PARTITIONS
from monolith.table.initializers import partitions_of


class Routing(ABC):
    """Rule that assigns every key to one of `num_shards` shards.

    Args:
        num_shards: number of shards, 1 to 4,096.
    """

    def __init__(self, num_shards: int) -> None:
        where = f"[{type(self).__name__}]"
        self.num_shards = as_integer(where, "num_shards", num_shards)
        if not 1 <= self.num_shards <= NUM_PARTITIONS:
            raise ValueError(
                f"{where} expected num_shards in [1, {NUM_PARTITIONS}], got {num_shards}"
            )

    @abstractmethod
    def shard_of(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the shard of each key: int64 (n,) -> int64 (n,)."""

    @abstractmethod
    def partitions_of(self, shard: int) -> range:
        """Return the partitions whose keys the shard may hold."""

    def placement_of(self, shard: int) -> "Placement":
        """Return the values that a shard stores to refuse another routing."""
        return Placement(type(self).__name__, self.num_shards, shard)


class Placement(NamedTuple):
    """Assignment of a table's keys to one shard, as plain values that are stored with the shard.

    Attributes:
        kind: class of the routing.
        num_shards: number of shards of the table.
        shard: number of this shard.

    Example:
        >>> str(FloorModRouting(3).placement_of(1))
        'shard 1 of FloorModRouting(3)'
    """

    kind: str
    num_shards: int
    shard: int

    def __str__(self) -> str:
        return f"shard {self.shard} of {self.kind}({self.num_shards})"

    def has_keys_of(self, other: "Placement") -> bool:
        """Whether both hold the same keys; a single shard holds all keys with every routing."""
        return self == other or self.num_shards == other.num_shards == 1


class PartitionRouting(Routing):
    """Gives each shard a range of the 4,096 partitions, which are the top bits of a key's hash.

    Shard i owns the partitions p with p * num_shards // 4096 == i: ascending, nearly equal ranges.

    Args:
        num_shards: number of shards, 1 to 4,096.

    Example:
        >>> routing = PartitionRouting(3)
        >>> routing.shard_of(torch.tensor([7, -7, 8])).tolist()
        [0, 2, 2]
        >>> routing.partitions_of(1)
        range(1366, 2731)
    """

    def __init__(self, num_shards: int) -> None:
        super().__init__(num_shards)
        owners = np.arange(NUM_PARTITIONS, dtype=np.int64) * self.num_shards // NUM_PARTITIONS
        self._owners = owners

    def shard_of(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the shard that owns the partition of each key."""
        return torch.from_numpy(self._owners[partitions_of(keys.numpy())])

    @property
    def owners(self) -> list[int]:
        """Shard of each partition."""
        return [int(owner) for owner in self._owners]

    def owner_of(self, partitions: torch.Tensor) -> torch.Tensor:
        """Return the shard that owns each partition: int64 (n,) -> int64 (n,)."""
        return torch.from_numpy(self._owners[partitions.numpy()])

    def partitions_of(self, shard: int) -> range:
        """Return the range of partitions that only this shard owns."""
        first, last = (-(-i * NUM_PARTITIONS // self.num_shards) for i in (shard, shard + 1))
        return range(first, last)


class FloorModRouting(Routing):
    """Gives each key to shard key modulo num_shards, the remainder that is never negative.

    This is the rule of the reference system's distributed tables. Every shard has keys of every
    partition.

    Args:
        num_shards: number of shards, 1 to 4,096.

    Example:
        >>> FloorModRouting(3).shard_of(torch.tensor([7, -7, 8])).tolist()
        [1, 2, 2]
    """

    def shard_of(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the floor remainder of each key."""
        return torch.remainder(keys, self.num_shards)

    def partitions_of(self, shard: int) -> range:
        """Return all partitions."""
        return range(NUM_PARTITIONS)


PARTITION_STRATEGIES: Mapping[str, type[Routing]] = MappingProxyType(
    {"div": PartitionRouting, "mod": FloorModRouting}
)
"""Names of the reference system: ranges of hashes in place of ranges of numbers, or remainders."""


def routing_of(where: str, partition_strategy: str, num_shards: int) -> Routing:
    """Return the routing of a partition strategy.

    Args:
        where: Begins the message.
        partition_strategy: Name, one of `PARTITION_STRATEGIES`.
        num_shards: Number of shards.

    Raises:
        ValueError: There is no such strategy.

    Example:
        >>> routing_of("[RankTables]", "mod", 3).shard_of(torch.tensor([7, -7, 8])).tolist()
        [1, 2, 2]
    """
    kind = PARTITION_STRATEGIES.get(partition_strategy)
    if kind is None:
        raise ValueError(
            f"{where} expected partition_strategy in {', '.join(PARTITION_STRATEGIES)}, got "
            f"{partition_strategy!r}"
        )
    return kind(num_shards)
