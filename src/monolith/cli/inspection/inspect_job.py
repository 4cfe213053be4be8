"""`monolith inspect --job`: the rows of a key of a running job."""

from monolith.cli.console import emit_json, emit_table, fail
from monolith.cli.inspection.inspect_save import list_text, time_text
from monolith.control import ControllerClient


def inspect_job(model_dir: str, key: int, table: str | None, as_json: bool) -> None:
    """Show the rows of a key as they are now, also during a step.

    Args:
        model_dir: Folder of the job's checkpoints.
        key: Key, signed or unsigned.
        table: Name of a table; None for all tables.
        as_json: Print JSON lines.
    """
    with ControllerClient(model_dir) as client:
        rows = client.rows(key, table or "")
    signed = key - (1 << 64) if key >= 1 << 63 else key
    for row in rows:
        if as_json:
            emit_json({"table": row.table, "key": signed, "time": row.time, "columns": row.columns})
            continue
        columns = [(name, list_text(values)) for name, values in row.columns.items()]
        cells = [("time", time_text(row.time)), *columns]
        emit_table((f"{row.table}[{signed}]", "value"), cells)
    if not rows:
        tables = f"table {table!r}" if table else "any table"
        fail(f"[inspect] expected key {key} in {tables} of the job of {model_dir!r}, got no row")
