"""Say which number a slot has, and which name."""

import re
import threading
from collections.abc import Mapping

_SLOT = re.compile(r"(?:fc_)?slot_(\d+)")
_SLOTS: dict[str, int] = {}
_SLOTS_LOCK = threading.Lock()


def register_slots(slots: Mapping[str, int]) -> None:
    """Give features a number for this process; names such as `slot_7` need none.

    Raises:
        ValueError: a number is below 0, or a feature has another number already.
    """
    with _SLOTS_LOCK:
        for name, slot in slots.items():
            known = _SLOTS.get(name, slot)
            if slot < 0 or known != slot:
                expected = "a slot of at least 0" if slot < 0 else f"slot {known} again"
                raise ValueError(
                    f"[register_slots] expected {expected}, got {slot} (feature {name!r})"
                )
        _SLOTS.update(slots)


def get_slot_from_feature_name(feature_name: str) -> int | None:
    """Return the number in a name, else the registered number, else None.

    Example:
        >>> get_slot_from_feature_name("fc_slot_12"), get_slot_from_feature_name("user")
        (12, None)
    """
    match = _SLOT.fullmatch(feature_name)
    if match:
        return int(match[1])
    with _SLOTS_LOCK:
        return _SLOTS.get(feature_name)


def get_slot_feature_name(slot: int) -> str:
    """Return the name of the feature of a slot that no list names."""
    return f"fc_slot_{slot}"
