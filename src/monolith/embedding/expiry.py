"""Expiry: how long a row lives after its last update."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from monolith.embedding.slots import check_int, check_slots, slot_of

__all__ = ["Expiry", "SECONDS_PER_DAY"]

SECONDS_PER_DAY = 86_400
_MAX_DAYS = (1 << 31) - 1


@dataclass(frozen=True)
class Expiry:
    """A row is expired `days` after its last update; `Table.evict` removes expired rows.

    0 days: always expired, also a row that was just updated.

    Args:
        days: life of a row.
        slots: slot -> days, for slots that differ.

    Example:
        >>> Expiry(14, slots={1: 5}).seconds_of((1 << 48) | 123)
        432000
    """

    days: int = 36_500
    slots: Mapping[int, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_int("Expiry", "days", self.days, 0, _MAX_DAYS)
        object.__setattr__(self, "slots", check_slots("Expiry", "days", self.slots, 0, _MAX_DAYS))

    def seconds_of(self, key: int) -> int:
        """Life of the key's row in seconds."""
        return self.slots.get(slot_of(key), self.days) * SECONDS_PER_DAY
