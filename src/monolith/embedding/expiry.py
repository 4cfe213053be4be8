"""Expiry: how long a row lives after its last update."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from monolith.embedding.slots import NUM_SLOTS, check_int, check_slots, slot_of

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

    def is_expired(self, keys: torch.Tensor, times: torch.Tensor, reference: int) -> torch.Tensor:
        """Whether rows are expired at a time, bool (n,).

        Args:
            keys: int64 (n,).
            times: int64 (n,), of the last updates.
            reference: the time.
        """
        if not self.slots:
            return reference - times >= self.days * SECONDS_PER_DAY
        days = torch.full((NUM_SLOTS,), self.days, dtype=torch.int64, device="cpu")
        days[list(self.slots)] = torch.tensor(list(self.slots.values()), device="cpu")
        return reference - times >= days[(keys >> 48) & (NUM_SLOTS - 1)] * SECONDS_PER_DAY
