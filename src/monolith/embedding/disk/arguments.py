"""Arguments that saves and loads share."""

from typing import Any

import torch

from monolith.embedding.arguments import as_integer
from monolith.embedding.verbs import TableVerbs

__all__ = ["checked_tables", "checked_threads"]


def checked_tables(where: str, tables: Any) -> list[TableVerbs]:
    """One table or several as a list; refuses what is none, and equal names."""
    chosen = [tables] if isinstance(tables, TableVerbs) else list(tables)
    for table in chosen:
        if not isinstance(table, TableVerbs):
            raise TypeError(f"{where} expected tables, got {type(table).__name__}")
    names = [table.name for table in chosen]
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
