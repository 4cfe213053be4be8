"""Checks of plain arguments of public calls: integers, lists, ids, and time limits of waits."""

import math
import operator
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch


def as_integer(where: str, name: str, value: Any, which: str = "") -> int:
    """Return the value as an int; accepts integers of numpy and tensors of one integer too."""
    try:
        return operator.index(value)
    except (TypeError, RuntimeError) as error:  # RuntimeError: a tensor without storage
        raise TypeError(f"{where} expected {name} as an integer, got {value!r}{which}") from error


def check_number(where: str, name: str, value: Any, which: str = "") -> None:
    """Refuse a value that is no real number; the caller checks the range."""
    try:
        math.isfinite(value)  # unlike float(), refuses a str
    except OverflowError:
        pass  # an int beyond the largest float is a number too
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{where} expected {name} as a number, got {value!r}{which}") from error


def as_list(where: str, name: str, values: Iterable[Any], which: str = "") -> list[Any]:
    """Return the values of a sequence, a tensor or an iterator as a list."""
    try:
        return list(values)
    except TypeError as error:
        raise TypeError(f"{where} expected {name} as a sequence, got {values!r}{which}") from error


def check_kind(where: str, name: str, value: Any, *kinds: type, which: str = "") -> None:
    """Refuse a value that is an instance of none of the classes."""
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{where} expected {name} as {expected}, got {value!r}{which}")


def as_keys(where: str, name: str, ids: torch.Tensor) -> torch.Tensor:
    """Return ids as int64 in main memory; int32 is converted, other dtypes are refused."""
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
"""Default limit of a wait for other threads or processes; longer than all tries of a shard call."""


def check_wait(owner: str, timeout_seconds: float, name: str) -> float:
    """Return the limit of a wait in seconds; refuse an invalid limit."""
    if not 0 <= timeout_seconds <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"[{owner}] expected timeout_seconds in [0, {threading.TIMEOUT_MAX:g}], got "
            f"{timeout_seconds} (table {name!r})"
        )
    return float(timeout_seconds)


def time_text(seconds: float) -> str:
    """Return the date and time of seconds since 1970, for messages.

    Example:
        >>> time_text(0.0)
        '1970-01-01 00:00:00 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
