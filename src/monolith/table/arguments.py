"""Check the plain arguments of public calls: integers, lists, ids, and time limits of waits."""

import math
import operator
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch


def as_integer(where: str, name: str, value: Any, which: str = "") -> int:
    """The value as an int; takes numpy's integers and tensors of one integer too."""
    try:
        return operator.index(value)
    except (TypeError, RuntimeError) as error:  # RuntimeError: a tensor without storage
        raise TypeError(f"{where} expected {name} as an integer, got {value!r}{which}") from error


def check_number(where: str, name: str, value: Any, which: str = "") -> None:
    """Refuse what is no real number; its range is the caller's matter."""
    try:
        math.isfinite(value)  # unlike float(), it takes no str
    except OverflowError:
        pass  # an int beyond every float: a number
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{where} expected {name} as a number, got {value!r}{which}") from error


def as_list(where: str, name: str, values: Iterable[Any], which: str = "") -> list[Any]:
    """The values of a sequence, a tensor or an iterator."""
    try:
        return list(values)
    except TypeError as error:
        raise TypeError(f"{where} expected {name} as a sequence, got {values!r}{which}") from error


def check_kind(where: str, name: str, value: Any, *kinds: type, which: str = "") -> None:
    """Refuse what is of none of the classes."""
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{where} expected {name} as {expected}, got {value!r}{which}")


def as_keys(where: str, name: str, ids: torch.Tensor) -> torch.Tensor:
    """Ids as an int64 tensor in main memory; int32 is widened, the rest refused."""
    if not isinstance(ids, torch.Tensor):
        raise TypeError(
            f"{where} expected {name} as a torch.Tensor, got {type(ids).__name__}; "
            "make one with torch.tensor"
        )
    if ids.is_nested:
        raise TypeError(
            f"{where} expected {name} as a dense tensor or a Ragged, got a nested tensor; make a "
            "Ragged of it with Ragged.from_nested"
        )
    if ids.dtype != torch.int64:
        if ids.dtype != torch.int32:
            raise TypeError(
                f"{where} expected {name} of dtype int64 or int32, got "
                f"{str(ids.dtype).removeprefix('torch.')}; cast with .long()"
            )
        ids = ids.long()
    if not ids.is_cpu:
        raise ValueError(
            f"{where} expected {name} on device cpu, got {ids.device}; move with .cpu(), and the "
            "output to the device of the model"
        )
    return ids


WAIT_SECONDS = 600.0
"""How long a call waits for others, unless told; longer than all tries of a call to a shard."""


def check_wait(owner: str, timeout_seconds: float, name: str) -> float:
    """The limit of a wait in seconds, refused if it is none."""
    if not 0 <= timeout_seconds <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"[{owner}] expected timeout_seconds in [0, {threading.TIMEOUT_MAX:g}], got "
            f"{timeout_seconds} (table {name!r})"
        )
    return float(timeout_seconds)


def time_text(seconds: float) -> str:
    """A moment since 1970, for messages.

    Example:
        >>> time_text(0.0)
        '1970-01-01 00:00:00 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
