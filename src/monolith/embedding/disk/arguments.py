"""Arguments that saves and loads share."""

from typing import Any

import torch

from monolith.embedding.arguments import as_integer, as_list
from monolith.embedding.verbs import TableVerbs

__all__ = ["checked_tables", "checked_threads"]


def checked_tables(where: str, tables: Any, *others: type) -> list[Any]:
    """One table or several as a list; refuses what is none, or of `others`, and equal names."""
    kinds = (TableVerbs, *others)
    chosen = [tables] if isinstance(tables, kinds) else as_list(where, "tables", tables)
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
