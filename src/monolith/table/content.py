"""Complete content of a table as plain values and tensors: for state_dict, pickle and copies."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monolith.errors import InvalidArgumentError
from monolith.table._checks import MAX_TIME, check_rows
from monolith.table.base import BaseTable
from monolith.table.disk.config_json import config_to_json, first_difference
from monolith.table.eviction import check_candidates
from monolith.table.rows import Rows, join_rows, no_rows

_VERSION = 1


def table_content(table: BaseTable) -> dict[str, Any]:
    """Return config, rows, candidates and counters of one moment, as `torch.load` accepts them.

    Example:
        >>> from monolith.table import Segment, Table, TableConfig
        >>> table_content(Table(TableConfig("user", Segment(4))))["keys"]
        tensor([], dtype=torch.int64)
    """
    with table.cut() as snapshot:
        rows = join_rows([no_rows(table.config), *snapshot.export()])
        return {
            "version": _VERSION,
            "config": config_to_json(table.config),
            "keys": rows.keys,
            "times": rows.times,
            "columns": rows.columns,
            "candidates": snapshot.export_candidates(),
            "num_update_calls": snapshot.num_update_calls,
            "latest_time": snapshot.latest_time,
        }


def restore_content(table: BaseTable, content: Mapping[str, Any]) -> None:
    """Replace the content of a table; all of the new content is checked first.

    Raises:
        InvalidArgumentError: the content belongs to another config or version.
    """
    restore_contents([(table, content)])


def restore_contents(pairs: Sequence[tuple[BaseTable, Mapping[str, Any]]]) -> None:
    """Replace the content of tables; all contents are checked before any table changes.

    Raises:
        InvalidArgumentError: a content belongs to another config or version.
    """
    row_chunks = [_checked_rows(table, content) for table, content in pairs]
    for (table, content), rows in zip(pairs, row_chunks, strict=True):
        table.clear()
        table.import_rows(rows)
        table.import_candidates(content["candidates"])
        table.num_update_calls = content["num_update_calls"]
        table.latest_time = content["latest_time"]


def _checked_rows(table: BaseTable, content: Mapping[str, Any]) -> Rows:
    """Return the rows of a content, checked for the table."""
    which = f"(table {table.name!r})"
    _check_fields(content, which)
    difference = first_difference(content["config"], config_to_json(table.config))
    if difference:
        field, expected, got = difference
        raise InvalidArgumentError(
            f"[load_state_dict] expected {field} {expected!r} as in the saved state, got {got!r} "
            f"{which}"
        )
    rows = Rows(content["keys"], content["times"], dict(content["columns"]))
    check_rows(table.config, rows)
    check_candidates(table.config, content["candidates"])
    return rows


_FIELDS: tuple[tuple[str, type], ...] = (
    ("version", int),
    ("config", Mapping),
    ("keys", torch.Tensor),
    ("times", torch.Tensor),
    ("columns", Mapping),
    ("candidates", Mapping),
    ("num_update_calls", int),
    ("latest_time", int),
)


def _check_fields(content: Mapping[str, Any], which: str) -> None:
    """Refuse a content of another version, without a field, or with a field of a wrong type."""
    version = content.get("version") if isinstance(content, Mapping) else None
    if version != _VERSION:
        raise InvalidArgumentError(
            f"[load_state_dict] expected table content of version {_VERSION}, got version "
            f"{version} {which}"
        )
    for name, expected in _FIELDS:
        value = content.get(name)
        if not isinstance(value, expected) or isinstance(value, bool):
            got = type(value).__name__ if name in content else "none"
            raise InvalidArgumentError(
                f"[load_state_dict] expected {name} of type {expected.__name__}, got {got} {which}"
            )
    for name, most in (("num_update_calls", (1 << 63) - 1), ("latest_time", MAX_TIME)):
        if not 0 <= content[name] <= most:
            raise InvalidArgumentError(
                f"[load_state_dict] expected {name} in [0, {most}], got {content[name]} {which}"
            )


def copy_of_content(table: BaseTable) -> dict[str, Any]:
    """Return the values from which `fill_table` creates an equal table, in any process.

    Raises:
        TypeError: the rows belong to servers or shards, which a copy would not have.
    """
    if table._is_spread:
        raise TypeError(
            f"[copy.deepcopy, pickle] expected a table that holds its rows itself, got "
            f"{type(table).__name__} (table {table.name!r}), whose rows live in shards; make the "
            "model again and load its state_dict()"
        )
    return {
        "class": type(table),
        "config": table.config,
        "clock": table._clock,
        "changes_bytes": table._changes_bytes,
        "content": table_content(table),
    }


def fill_table(state: Mapping[str, Any]) -> BaseTable:
    """Return a new table with the content of `copy_of_content`."""
    table = state["class"](
        state["config"], clock=state["clock"], changes_bytes=state["changes_bytes"]
    )
    assert isinstance(table, BaseTable)
    restore_content(table, state["content"])
    return table
