"""Byte budget: a bound on a table's memory, and what happens at it."""

from dataclasses import dataclass

from monolith.embedding.slots import check_int

__all__ = ["Budget", "EMPTY_TABLE_BYTES"]

EMPTY_TABLE_BYTES = 4096
"""Most bytes of a table without rows."""

_POLICIES = ("refuse", "evict_oldest", "evict_least_frequent")


@dataclass(frozen=True)
class Budget:
    """A bound on `memory_report()["total_bytes"]`: rows, index and candidates.

    Args:
        max_bytes: the bound; at least one row and 4,096 bytes for the table itself.
        policy: what a new key meets at the bound. "refuse": it gets no row, counted as refused.
            "evict_oldest": 16 rows are sampled and the one with the smallest update time makes
            room. "evict_least_frequent": of the 16, the one with the fewest uses does. A use is a
            writing call, at most 255 count, and every 8th sampling halves the uses of its 16.

    Example:
        >>> Budget(1 << 30, "evict_oldest").policy
        'evict_oldest'
    """

    max_bytes: int
    policy: str = "refuse"

    def __post_init__(self) -> None:
        check_int("Budget", "max_bytes", self.max_bytes, 1, 1 << 60)
        if self.policy not in _POLICIES:
            expected = "'refuse', 'evict_oldest' or 'evict_least_frequent'"
            raise ValueError(f"[Budget] expected policy {expected}, got {self.policy!r}")
