"""Checks of arguments that saves and loads share."""

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
    """Begin errors of shared code with the name of the called function."""
    try:
        yield
    except Exception as error:
        text = error.args[0] if error.args else None
        if isinstance(text, str) and text.startswith(_LOAD):
            error.args = (where + text.removeprefix(_LOAD), *error.args[1:])
        raise


def checked_path(where: str, path: Any) -> str:
    """Return the path as a str."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"{where} expected path as a str or a PathLike, got {path!r}")
    return text


def checked_paths(where: str, path: Any) -> "list[str | Save]":
    """Return one place or several as a list; refuse an empty list."""
    is_one = isinstance(path, str | os.PathLike | Save)
    places = [path] if is_one else as_list(where, "path", path)
    if not places:
        raise ValueError(f"{where} expected path as one folder or more, got []")
    return [place if isinstance(place, Save) else checked_path(where, place) for place in places]


def checked_names(where: str, names: Any) -> list[str] | None:
    """Return names of tables; refuse a single str, which is a sequence of letters."""
    if names is None:
        return None
    table_names = None if isinstance(names, str) else as_list(where, "names", names)
    if table_names is None or not all(isinstance(name, str) for name in table_names):
        raise TypeError(f"{where} expected names as a sequence of str, got {names!r}")
    return table_names


def checked_partitions(where: str, partitions: Any) -> list[int] | None:
    """Return the partitions in ascending order; None stays None."""
    if partitions is None:
        return None
    values = as_list(where, "partitions", partitions)
    numbers = sorted({as_integer(where, "a partition", number) for number in values})
    for number in numbers:
        if not 0 <= number < NUM_PARTITIONS:
            raise ValueError(f"{where} expected partitions in [0, {NUM_PARTITIONS}), got {number}")
    return numbers


def checked_progress(where: str, progress: Any) -> None:
    """Refuse a value that is no function."""
    if progress is not None and not callable(progress):
        raise TypeError(f"{where} expected progress as a function, got {progress!r}")


def checked_shards(where: str, shards: Any, tables: Iterable[BaseTable]) -> list[int] | None:
    """Return the shards in ascending order, which every table must have; None stays None."""
    if shards is None:
        return None
    values = as_list(where, "shards", shards)
    numbers = sorted({as_integer(where, "a shard", number) for number in values})
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
    """Return one table or several as a list; refuse other types than tables and `others`."""
    kinds = (BaseTable, *others)
    table_list = list(tables) if isinstance(tables, Iterable) else [tables]
    for table in table_list:
        if not isinstance(table, kinds):
            raise TypeError(f"{where} expected tables, got {type(table).__name__}")
    names = [table.config.name for table in table_list]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{where} expected tables of different names, got {names}")
    return table_list


def checked_threads(where: str, num_threads: int | None) -> int:
    """Return the number of threads; None means torch's number."""
    if num_threads is None:
        return torch.get_num_threads()
    number = as_integer(where, "num_threads", num_threads)
    if number < 1:
        raise ValueError(f"{where} expected num_threads >= 1, got {number}")
    return number
