"""Arguments that saves and loads share."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from monolith.table.arguments import as_integer, as_list
from monolith.table.base import BaseTable
from monolith.table.config import NUM_PARTITIONS
from monolith.table.disk.plan import Save

_LOAD = "[load_tables]"


@contextmanager
def told_as(where: str) -> Iterator[None]:
    """Errors of what every load does begin with the name of the function that was called."""
    try:
        yield
    except Exception as error:
        text = error.args[0] if error.args else None
        if isinstance(text, str) and text.startswith(_LOAD):
            error.args = (where + text.removeprefix(_LOAD), *error.args[1:])
        raise


def checked_path(where: str, path: Any) -> str:
    """The path as a str."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"{where} expected path as a str or a PathLike, got {path!r}")
    return text


def checked_paths(where: str, path: Any) -> "list[str | Save]":
    """One place or several as a list; refuses none at all."""
    is_one = isinstance(path, str | os.PathLike | Save)
    given = [path] if is_one else as_list(where, "path", path)
    if not given:
        raise ValueError(f"{where} expected path as one folder or more, got []")
    return [each if isinstance(each, Save) else checked_path(where, each) for each in given]


def checked_names(where: str, names: Any) -> list[str] | None:
    """Names of tables; refuses a single str, which is a sequence of its letters."""
    if names is None:
        return None
    chosen = None if isinstance(names, str) else as_list(where, "names", names)
    if chosen is None or not all(isinstance(name, str) for name in chosen):
        raise TypeError(f"{where} expected names as a sequence of str, got {names!r}")
    return chosen


def checked_partitions(where: str, partitions: Any) -> list[int] | None:
    """The partitions in ascending order; None stays None."""
    if partitions is None:
        return None
    given = as_list(where, "partitions", partitions)
    numbers = sorted({as_integer(where, "a partition", number) for number in given})
    for number in numbers:
        if not 0 <= number < NUM_PARTITIONS:
            raise ValueError(f"{where} expected partitions in [0, {NUM_PARTITIONS}), got {number}")
    return numbers


def checked_progress(where: str, progress: Any) -> None:
    """Refuse what is no function."""
    if progress is not None and not callable(progress):
        raise TypeError(f"{where} expected progress as a function, got {progress!r}")


def checked_shards(where: str, shards: Any, tables: Iterable[BaseTable]) -> list[int] | None:
    """The shards in ascending order, which every table must have; None stays None."""
    if shards is None:
        return None
    given = as_list(where, "shards", shards)
    numbers = sorted({as_integer(where, "a shard", number) for number in given})
    for table in tables:
        num_shards = len(table.shards())
        if not num_shards:
            raise TypeError(
                f"{where} expected tables in shards with shards={numbers}, got "
                f"{type(table).__name__} (table {table.name!r})"
            )
        for number in numbers:
            if not 0 <= number < num_shards:
                raise ValueError(
                    f"{where} expected shards in [0, {num_shards}), got {number} "
                    f"(table {table.name!r})"
                )
    return numbers


def checked_tables(where: str, tables: Any, *others: type) -> list[Any]:
    """One table or several as a list; refuses what is none, or of `others`, and equal names."""
    kinds = (BaseTable, *others)
    chosen = list(tables) if isinstance(tables, Iterable) else [tables]
    for table in chosen:
        if not isinstance(table, kinds):
            raise TypeError(f"{where} expected tables, got {type(table).__name__}")
    names = [table.config.name for table in chosen]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{where} expected tables of different names, got {names}")
    return chosen


def checked_threads(where: str, num_threads: int | None) -> int:
    """The number of threads; torch's if None."""
    if num_threads is None:
        return torch.get_num_threads()
    number = as_integer(where, "num_threads", num_threads)
    if number < 1:
        raise ValueError(f"{where} expected num_threads >= 1, got {number}")
    return number
