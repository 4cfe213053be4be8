"""`monolith export`: write the rows of a checkpoint for other programs."""

import time
from typing import Annotated

import typer

from monolith.checkpoint import load
from monolith.checkpoint.vectors.checkpoint_rows import saved_tables
from monolith.checkpoint.vectors.row_files import write_row_files
from monolith.checkpoint.vectors.torchrec_state import write_torchrec_state
from monolith.cli.console import emit_json, row_progress, say, told_of_interrupt

app = typer.Typer(
    help="Example: monolith export rows runs/ads --to rows\n\n"
    "Write the rows of a checkpoint for other programs.",
    short_help="Write the rows of a checkpoint for other programs.",
    no_args_is_help=True,
    add_completion=False,
)

_Checkpoint = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="Checkpoint, or folder with checkpoints.")
]
_Tables = Annotated[
    list[str] | None, typer.Option("--table", metavar="NAME", help="Table to write. Default: all.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON lines on stdout.")]


@app.command(
    help="Example: monolith export rows runs/ads --to rows\n\n"
    "Write a Parquet file with key, time and weights for each table.",
    short_help="Write a Parquet file for each table.",
)
def rows(
    checkpoint: _Checkpoint,
    to: Annotated[str, typer.Option(metavar="DIR", help="New or empty folder for the files.")],
    tables: _Tables = None,
    with_state: Annotated[
        bool, typer.Option("--with-state", help="Write the state of the optimizers too.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Write a Parquet file with key, time and weights for each table."""
    opened = load(checkpoint)
    say(f"checkpoint {opened.prefix} (step {opened.step})")
    saved, start = saved_tables(opened, tables), time.perf_counter()
    num_rows = sum(table.num_rows for table in saved)
    with told_of_interrupt("nothing was written"), row_progress("exporting", num_rows) as advance:
        counts = write_row_files(saved, to, with_state=with_state, advance=advance)
    seconds = time.perf_counter() - start
    for path, count in counts.items():
        if as_json:
            emit_json({"file": str(path), "num_rows": count})
        say(f"{count:,} rows at {path}")
    files = f"{len(counts)} file{'' if len(counts) == 1 else 's'}"
    say(f"wrote {files} in {seconds:.1f} s; next: monolith data head {to}")


@app.command(
    help="Example: monolith export torchrec runs/ads --to state.pt\n\n"
    "Write the state_dict of an EmbeddingBagCollection, and the key of each row of its matrices.",
    short_help="Write the state_dict of an EmbeddingBagCollection.",
)
def torchrec(
    checkpoint: _Checkpoint,
    to: Annotated[str, typer.Option(metavar="FILE", help="New file, such as state.pt.")],
    tables: _Tables = None,
    as_json: _Json = False,
) -> None:
    """Write the state_dict of an EmbeddingBagCollection, and the key of each row."""
    opened = load(checkpoint)
    say(f"checkpoint {opened.prefix} (step {opened.step})")
    saved = saved_tables(opened, tables)
    num_rows = 2 * sum(table.num_rows for table in saved)  # each row is read twice
    with told_of_interrupt("nothing was written"), row_progress("exporting", num_rows) as advance:
        shapes = write_torchrec_state(saved, to, advance)
    for path, (count, dim) in shapes.items():
        if as_json:
            emit_json({"keys": str(path), "num_rows": count, "dim": dim})
        say(f"keys of a matrix of {count:,} x {dim}: {path}; row i has the i-th key")
    say(f'wrote {to}; next: collection.load_state_dict(torch.load("{to}", weights_only=True))')
