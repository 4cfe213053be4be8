"""Rules per slot: a default, and other numbers for some slots. Checks that they share."""

from collections.abc import Mapping

from monolith.embedding.arguments import as_integer

__all__ = ["NUM_SLOTS", "check_int", "check_slots", "slot_of"]

NUM_SLOTS = 1 << 15
"""Slots of the fid v2 format."""


def slot_of(key: int) -> int:
    """Slot of any int64 key: bits 48 to 62, the fid v2 rule.

    Example:
        >>> slot_of((7 << 48) | 123), slot_of(-1)
        (7, 32767)
    """
    return (key >> 48) & (NUM_SLOTS - 1)


def check_int(where: str, name: str, value: object, low: int, high: int) -> None:
    """Refuse a value that is no integer in [low, high]."""
    number = as_integer(f"[{where}]", name, value)
    if not low <= number <= high:
        raise ValueError(f"[{where}] expected {name} in [{low}, {high}], got {number}")


def check_slots(
    where: str, name: str, slots: Mapping[int, int], low: int, high: int
) -> dict[int, int]:
    """The numbers by slot, ascending; refuses slots outside [0, 32768) and others off range."""
    if not isinstance(slots, Mapping):
        raise TypeError(f"[{where}] expected slots as slot -> {name}, got {slots!r}")
    for slot, value in slots.items():
        check_int(where, "slots", slot, 0, NUM_SLOTS - 1)
        check_int(where, f"{name} of slot {slot}", value, low, high)
    return {int(slot): int(slots[slot]) for slot in sorted(slots)}
