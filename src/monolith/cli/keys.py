"""`monolith keys`: make the keys of a job."""

from typing import Annotated

import typer

from monolith.cli.console import fail, say

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Example: monolith keys new job.keys\n\nMake the keys that encrypt a job's messages.",
    short_help="Make the keys that encrypt a job's messages.",
)


@app.callback()
def _keys() -> None:
    """Group the commands of keys."""


@app.command(
    help="Example: monolith keys new job.keys\n\n"
    "Write new CURVE keys to a file that only you can read. Servers and trainers of the job take "
    "it as --keys; whoever has the file can read and write the job's tables.",
    short_help="Write new keys to a file.",
)
def new(path: Annotated[str, typer.Argument(help="File to write, such as job.keys.")]) -> None:
    """Write new keys to a file that only the user can read."""
    from monolith.cluster.zmq.curve_keys import CurveKeys

    keys = CurveKeys.new()
    try:
        keys.write(path)
    except FileExistsError:
        fail(f"expected a new file, got {path!r}, which exists; keys are never replaced", status=2)
    except OSError as error:
        fail(f"expected a file that can be written, got {path!r}: {error.strerror}", status=2)
    say(f"wrote {path}; next: monolith ps --keys {path}, and monolith train ... --keys {path}")
