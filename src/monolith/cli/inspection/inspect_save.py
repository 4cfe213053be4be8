"""`monolith inspect` of tables on disk."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from monolith.cli.console import byte_progress, emit_json, emit_table, fail, say
from monolith.table.disk.contents import TableContents, describe_save, find_key, verify_save
from monolith.table.disk.plan import FolderSave, Save

_NUM_SLOTS = 10  # that are named
_FIRST_YEAR = 31_536_000  # smaller times are no dates


@dataclass(frozen=True)
class SaveOptions:
    """What to show.

    Args:
        key: the row of this key only.
        table: this table only.
        with_verify: check every byte.
        as_json: JSON lines.
    """

    key: int | None
    table: str | None
    with_verify: bool
    as_json: bool


def inspect_save(path: str, options: SaveOptions) -> None:
    """Show the tables of a folder of `save_tables`, or a row of it."""
    inspect_tables(FolderSave(path), path, options)


def inspect_tables(save: Save, where: str, options: SaveOptions) -> None:
    """Show the tables of a save, or a row of it.

    Args:
        save: the place where they lie.
        where: its name, for the reader.
        options: what to show.
    """
    names = None if options.table is None else [options.table]
    if options.key is not None:
        _show_key(save, where, options.key, names, options.as_json)
        return
    tables = describe_save(save, names=names)
    num_bytes = sum(table.num_bytes for table in tables)
    if options.with_verify:
        with byte_progress("checking", num_bytes) as advance:
            verify_save(save, names=names, advance=advance)
    if options.as_json:
        for table in tables:
            slots = {str(slot): count for slot, count in list(table.slots.items())[:_NUM_SLOTS]}
            emit_json({**asdict(table), "slots": slots, "num_slots": len(table.slots)})
    elif tables:
        _show_tables(tables)
    rows = sum(table.num_rows for table in tables)
    state = "every byte is as it was written" if options.with_verify else "next: --verify, --key K"
    count = f"{len(tables)} table{'s' if len(tables) != 1 else ''}"
    say(f"{count}, {rows:,} rows, {num_bytes:,} B at {where}; {state}")


def _show_key(save: Save, where: str, key: int, names: list[str] | None, as_json: bool) -> None:
    found = find_key(save, key, names=names)
    for row in found:
        if as_json:
            emit_json(asdict(row))
            continue
        cells = [
            ("time", time_text(row.time)),
            *((name, list_text(v)) for name, v in row.columns.items()),
        ]
        emit_table((f"{row.table}[{row.key}]", "value"), cells)
    if not found:
        tables = f"table {names[0]!r}" if names else "any table"
        fail(f"[inspect] expected key {key} in {tables} of {where!r}, got no row")


def _show_tables(tables: list[TableContents]) -> None:
    sizes = ("table", "rows", "candidates", "bytes", "files", "oldest update", "newest update")
    emit_table(sizes, [_sizes(table) for table in tables])
    segments = ("table", "segment", "dim", "weights", "optimizer", "initial value")
    emit_table(segments, [row for table in tables for row in _segments(table)])
    rules = ("table", "kind", "admission", "expiry", "budget", "update calls", "expired")
    emit_table(rules, [_rules(table) for table in tables])
    slots = [row for table in tables for row in _slots(table)]
    if slots:
        emit_table(("table", "slot", "rows", "share"), slots)


def _sizes(table: TableContents) -> list[object]:
    numbers = (table.num_rows, table.num_candidates, table.num_bytes, table.num_files)
    times = (table.oldest_time, table.newest_time)
    return [table.name, *(f"{number:,}" for number in numbers), *map(time_text, times)]


def _segments(table: TableContents) -> list[list[object]]:
    return [
        [
            table.name,
            segment["name"] or i,
            segment["dim"],
            ", ".join(map(_call, filter(None, (segment["precision"], segment["view"])))),
            _call(segment["optimizer"]),
            _call(segment["initializer"]),
        ]
        for i, segment in enumerate(table.config["segments"])
    ]


def _rules(table: TableContents) -> list[object]:
    rules = (_call(table.config[name]) for name in ("admission", "expiry", "budget"))
    counts = (f"{number:,}" for number in (table.num_update_calls, table.num_expired))
    return [table.name, table.config["kind"], *rules, *counts]


def _slots(table: TableContents) -> list[list[object]]:
    largest = list(table.slots.items())[:_NUM_SLOTS]
    return [
        [table.name, slot, f"{count:,}", f"{count / table.num_rows:.1%}"] for slot, count in largest
    ]


def time_text(seconds: int | None) -> str:
    """Return a time as a date, or as its number of seconds if it is too small for one."""
    if seconds is None or seconds < _FIRST_YEAR:
        return "-" if seconds is None else str(seconds)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _call(value: Any) -> str:
    """`Adagrad(learning_rate=0.1)` for an object as JSON; fields without a value are left out."""
    if not isinstance(value, dict):
        return "-" if value is None else str(value)
    name = value.get("class")
    if name is None:
        return str(value)
    fields = {k: v for k, v in value.items() if k != "class" and v not in (None, {})}
    return f"{name}({', '.join(f'{k}={_call(v)}' for k, v in fields.items())})"


def list_text(values: Sequence[float], most: int = 16) -> str:
    """Return numbers with commas between them, `most` of them."""
    texts = [f"{value:.6g}" for value in values[:most]]
    return ", ".join([*texts, *["..."] * (len(values) > most)])
