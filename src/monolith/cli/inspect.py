"""`monolith inspect`: print the contents of a path, with one module per kind of path."""

from pathlib import Path
from typing import Annotated

import typer

from monolith.cli.console import fail
from monolith.errors import NotFoundError

app = typer.Typer(add_completion=False)

_MANIFEST = "manifest.json"


@app.command(
    help="Example: monolith inspect runs/ads --verify\n\nPrint the rows, sizes and ages of saved "
    "tables, also those of a checkpoint of the reference system, or the features of a task file.",
    short_help="Print a checkpoint, saved tables, a task or a running job.",
)
def inspect(
    path: Annotated[
        str | None,
        typer.Argument(help="Checkpoint, folder with checkpoints or tables, or task file."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Show --key of the running job that saves in DIR."),
    ] = None,
    key: Annotated[int | None, typer.Option(help="Show the row of one key.")] = None,
    table: Annotated[str | None, typer.Option(help="Show one table only.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read and check every byte.")] = False,
    diff: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Show the changes up to the checkpoint at PATH."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines on stdout.")] = False,
) -> None:
    """Print the contents of a path."""
    options = [
        f"--{n}"
        for n, v in (("key", key), ("diff", diff), ("verify", verify or None))
        if v is not None
    ]
    if len(options) > 1:
        fail(f"expected one of --key, --diff and --verify, got {' and '.join(options)}", status=2)
    if key is not None and not -(1 << 63) <= key < 1 << 64:
        fail(f"expected --key of 64 bits, got {key}", status=2)
    if (path is None) == (job is None):
        fail(f"expected a path, or --job DIR, got {'none' if path is None else 'both'}", status=2)
    if job is not None:
        _inspect_job(job, key, table, options, as_json)
        return
    assert path is not None
    if path.endswith(".py") or ".py:" in path:
        _inspect_task_file(path, bool(options) or table is not None, as_json)
        return
    if diff is not None or _is_checkpoint(path):
        from monolith.cli.inspection.inspect_checkpoint import diff_checkpoints, inspect_checkpoint
        from monolith.cli.inspection.inspect_save import SaveOptions  # late: they import torch

        if diff is not None:
            diff_checkpoints(path, diff, table, as_json)
        else:
            inspect_checkpoint(path, SaveOptions(key, table, verify, as_json))
        return
    if not _has_manifest(path) and _inspect_dumps(path, options, table, as_json):
        return
    _check_save(path)
    from monolith.cli.inspection.inspect_save import (  # late: it imports torch
        SaveOptions,
        inspect_save,
    )

    inspect_save(path, SaveOptions(key, table, verify, as_json))


def _inspect_job(
    job: str, key: int | None, table: str | None, options: list[str], as_json: bool
) -> None:
    if key is None:
        fail(f"expected --key K with --job, got {options[0] if options else 'none'}", status=2)
    from monolith.cli.inspection.inspect_job import inspect_job  # late: it imports torch

    inspect_job(job, key, table, as_json)


def _inspect_task_file(path: str, has_other_options: bool, as_json: bool) -> None:
    if has_other_options:
        fail("expected --key, --table, --diff and --verify with tables, got a task file", status=2)
    from monolith.cli.inspection.inspect_task import inspect_task  # late: it imports torch

    inspect_task(path, as_json)


def _inspect_dumps(path: str, options: list[str], table: str | None, as_json: bool) -> bool:
    """Whether a path has dumps of the reference system, which are then shown."""
    from monolith.checkpoint.reference_dump import find_dumps  # late: it imports torch
    from monolith.cli.dumps.inspect_reference import inspect_dumps

    folder = find_dumps(path)
    if folder is None:
        return False
    if options:
        fail(f"expected {options[0]} with tables of this package, got dumps at {path!r}", status=2)
    inspect_dumps(folder, table, as_json)
    return True


def _is_checkpoint(path: str) -> bool:
    """Whether a path is the prefix of a checkpoint, or a folder with one."""
    scheme, mark, rest = path.partition("://")
    if mark and scheme != "file":
        from monolith.checkpoint import checkpoint_exists, existing_checkpoints  # late: torch

        return checkpoint_exists(path) or bool(existing_checkpoints(path))
    folder = Path(rest or path)
    if Path(f"{folder}.{_MANIFEST}").is_file():
        return True
    return folder.is_dir() and any(folder.glob(f"*.{_MANIFEST}"))


def _has_manifest(path: str) -> bool:
    """Whether a local folder has a save of tables; False elsewhere."""
    scheme, mark, rest = path.partition("://")
    return (not mark or scheme == "file") and (Path(rest or path) / _MANIFEST).is_file()


def _check_save(path: str) -> None:
    """Raise an error that names the contents of a path, unless the path holds a save of tables."""
    scheme, mark, rest = path.partition("://")
    if mark and scheme != "file":
        return  # on other file systems, the read of a missing manifest fails later
    folder = Path(rest or path)
    if _has_manifest(path):
        return
    if not folder.exists():
        got = "nothing"
    elif not folder.is_dir():
        got = "a file"
    else:
        names = sorted(entry.name for entry in folder.iterdir())
        saves = [name for name in names if (folder / name / _MANIFEST).is_file()]
        listed = ", ".join([*(saves or names)[:5], *["..."] * (len(saves or names) > 5)])
        got = f"the saves {listed} below it" if saves else f"a folder with {listed or 'nothing'}"
    raise NotFoundError(
        f"[inspect] expected a checkpoint, or a folder of save_tables, with {_MANIFEST}, got {got} "
        f"at {path!r}"
    )
