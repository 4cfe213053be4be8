"""A bounded set of recently touched keys, shared by its name within the process.

Tables report their changes through a log of their own; this class stands alone.
"""

import threading
import weakref
from typing import Any

import torch

from monolith.ops.compiled import load_native
from monolith.table.arguments import as_integer

TOUCHED_KEY_SET_CAPACITY = 64 * 1024 * 1024 // (8 * 4)
"""Default capacity: 2,097,152 keys."""

TOUCHED_KEY_SET_CONCURRENCY_LEVEL = 1024
"""Default number of locks."""

_NAME = "MonolithTouchedKeySet"
_MAX_CAPACITY = 1 << 40
_MAX_LEVEL = 1 << 20

# Shared name -> handle; a set lives as long as somebody holds it.
_SETS: "weakref.WeakValueDictionary[str, Any]" = weakref.WeakValueDictionary()
_SETS_LOCK = threading.Lock()


def monolith_touched_key_set(
    capacity: int = TOUCHED_KEY_SET_CAPACITY,
    concurrency_level: int = TOUCHED_KEY_SET_CONCURRENCY_LEVEL,
    shared_name: str = _NAME,
) -> Any:
    """Return the handle of the process's set of this name; the first call makes the set.

    Args:
        capacity: keys after which an insert empties the set first.
        concurrency_level: number of locks, rounded up to a power of two.
        shared_name: name of the set, which lives as long as a handle of it.

    Raises:
        ValueError: a number is out of range, or the set exists with another capacity or level.

    Example:
        >>> handle = monolith_touched_key_set(1000, 1, "example")
        >>> monolith_touched_key_set_insert(handle, torch.tensor([7]))
        tensor(0)
        >>> monolith_touched_key_set_steal(monolith_touched_key_set(1000, 1, "example"))
        tensor([7])
    """
    where = "[TouchedKeySet]"
    capacity = _checked(where, "capacity", capacity, 0, _MAX_CAPACITY)
    level = _checked(where, "concurrency_level", concurrency_level, 1, _MAX_LEVEL)
    new = load_native().TouchedKeySet(capacity, level)
    with _SETS_LOCK:
        known = _SETS.setdefault(shared_name, new)
    if (known.capacity, known.num_locks) != (capacity, new.num_locks):
        raise ValueError(
            f"{where} expected capacity {known.capacity} and {known.num_locks} locks, those of the "
            f"set {shared_name!r}, got {capacity} and {new.num_locks}; choose another name_suffix"
        )
    return known


def create_touched_key_set(capacity: int, concurrency_level: int, name_suffix: str = "") -> Any:
    """Return the handle of the process's set whose name ends in `name_suffix`.

    Arguments and errors are those of `monolith_touched_key_set`.

    Example:
        >>> a = create_touched_key_set(1000, 1, "_example")
        >>> create_touched_key_set(1000, 1, "_example") is a
        True
    """
    return monolith_touched_key_set(capacity, concurrency_level, _NAME + name_suffix)


def monolith_touched_key_set_insert(handle: Any, ids: torch.Tensor) -> torch.Tensor:
    """Insert keys into a set in row-major order.

    Args:
        handle: handle of the set, of `monolith_touched_key_set`.
        ids: int64 of any shape.

    Returns:
        Number of keys that the call dropped, an int64 scalar.
    """
    return _insert("[monolith_touched_key_set_insert]", handle, ids)


def monolith_touched_key_set_steal(handle: Any) -> torch.Tensor:
    """Take all keys out of a set.

    Args:
        handle: handle of the set, of `monolith_touched_key_set`.

    Returns:
        The keys, int64 (n,), in no order.
    """
    _check_handle("[monolith_touched_key_set_steal]", handle)
    data = bytearray(load_native().monolith_touched_key_set_steal(handle))
    if not data:
        return torch.empty(0, dtype=torch.int64, device="cpu")
    return torch.frombuffer(data, dtype=torch.int64)


def _insert(where: str, handle: Any, ids: Any) -> torch.Tensor:
    _check_handle(where, handle)
    if not isinstance(ids, torch.Tensor):
        raise TypeError(f"{where} expected ids as a torch.Tensor, got {type(ids).__name__}")
    if ids.dtype != torch.int64 or ids.device.type != "cpu":
        raise TypeError(
            f"{where} expected ids of dtype int64 on device cpu, got "
            f"{str(ids.dtype).removeprefix('torch.')} on {ids.device}"
        )
    flat = ids.contiguous()
    num_dropped = load_native().monolith_touched_key_set_insert(
        handle, flat.data_ptr(), flat.numel()
    )
    return torch.tensor(num_dropped, dtype=torch.int64, device="cpu")


def _check_handle(where: str, handle: Any) -> None:
    if not isinstance(handle, load_native().TouchedKeySet):
        raise TypeError(
            f"{where} expected a handle of monolith_touched_key_set, got {type(handle).__name__}"
        )


def _checked(where: str, name: str, value: int, low: int, high: int) -> int:
    number = as_integer(where, name, value)
    if not low <= number <= high:
        raise ValueError(f"{where} expected {name} in [{low}, {high}], got {number}")
    return number


class TouchedKeySet:
    """Distinct keys that were touched since the last `steal`. Any two calls may run at once.

    A key that finds more than `capacity` keys empties the set before it goes in, also if it is one
    of them; `insert` tells how many were dropped, and a caller that sees drops sends everything.

    Args:
        capacity: keys after which an insert empties the set first.
        concurrency_level: number of locks, rounded up to a power of two.
        name_suffix: objects with equal suffixes share one set.

    Example:
        >>> touched = TouchedKeySet(1000, 1)
        >>> touched.insert(torch.tensor([7, -7, 7]))
        tensor(0)
        >>> touched.steal().sort().values
        tensor([-7,  7])
    """

    def __init__(
        self,
        capacity: int = TOUCHED_KEY_SET_CAPACITY,
        concurrency_level: int = TOUCHED_KEY_SET_CONCURRENCY_LEVEL,
        name_suffix: str = "",
    ) -> None:
        self._set = create_touched_key_set(capacity, concurrency_level, name_suffix)
        self._capacity = capacity
        self._concurrency_level = concurrency_level

    @property
    def capacity(self) -> int:
        """Keys after which an insert empties the set first."""
        return self._capacity

    @property
    def concurrency_level(self) -> int:
        """Number of locks that was asked for."""
        return self._concurrency_level

    @property
    def handle(self) -> Any:
        """Handle for `monolith_touched_key_set_insert` and `monolith_touched_key_set_steal`."""
        return self._set

    def __len__(self) -> int:
        return len(self._set)

    def insert(self, ids: torch.Tensor) -> torch.Tensor:
        """Insert keys in row-major order.

        Args:
            ids: int64 of any shape.

        Returns:
            int64 scalar: how many keys the call dropped.
        """
        return _insert("[TouchedKeySet.insert]", self._set, ids)

    def steal(self) -> torch.Tensor:
        """Take all keys out.

        Returns:
            int64 (n,), in no order.
        """
        return monolith_touched_key_set_steal(self._set)
