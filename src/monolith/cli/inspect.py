"""`monolith inspect`: what is at a path. One module per kind of path."""

from pathlib import Path
from typing import Annotated

import typer

from monolith.cli.talk import fail
from monolith.errors import NotFoundError

__all__ = ["app", "inspect"]

app = typer.Typer(add_completion=False)

_MANIFEST = "manifest.json"


@app.command(
    help="Example: monolith inspect saved/ --verify\n\nPrint rows, sizes and ages of tables on "
    "disk, or the features of a task file.",
    short_help="Print what tables on disk, or a task file, hold.",
)
def inspect(
    path: Annotated[
        str, typer.Argument(help="Folder of save_tables, any fsspec path; or a task file.")
    ],
    key: Annotated[int | None, typer.Option(help="Show the row of this key.")] = None,
    table: Annotated[str | None, typer.Option(help="Only this table.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read and check every byte.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")] = False,
) -> None:
    """Print what is at a path."""
    if key is not None and verify:
        fail("expected --key or --verify, got both", status=2)
    if key is not None and not -(1 << 63) <= key < 1 << 64:
        fail(f"expected --key of 64 bits, got {key}", status=2)
    if path.endswith(".py") or ".py:" in path:
        _inspect_task_file(path, key is not None or table is not None or verify, as_json)
        return
    _check_save(path)
    from monolith.cli.inspect_save import SaveOptions, inspect_save  # late: it imports torch

    inspect_save(path, SaveOptions(key, table, verify, as_json))


def _inspect_task_file(path: str, has_other_options: bool, as_json: bool) -> None:
    if has_other_options:
        fail("expected --key, --table and --verify with tables on disk, got a task file", status=2)
    from monolith.cli.inspect_task import inspect_task  # late: it imports torch

    inspect_task(path, as_json)


def _check_save(path: str) -> None:
    """Refuse what is no save, with what was found instead."""
    scheme, mark, rest = path.partition("://")
    if mark and scheme != "file":
        return  # of other file systems a missing manifest is told when it is read
    folder = Path(rest or path)
    if (folder / _MANIFEST).is_file():
        return
    if not folder.exists():
        got = "nothing"
    elif not folder.is_dir():
        got = "a file"
    else:
        names = sorted(each.name for each in folder.iterdir())
        saves = [name for name in names if (folder / name / _MANIFEST).is_file()]
        listed = ", ".join([*(saves or names)[:5], *["..."] * (len(saves or names) > 5)])
        got = f"the saves {listed} below it" if saves else f"a folder with {listed or 'nothing'}"
    raise NotFoundError(
        f"[inspect] expected a folder of save_tables, with {_MANIFEST}, got {got} at {path!r}"
    )
