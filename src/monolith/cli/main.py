"""The command `monolith`."""

import typer

from monolith.cli import data
from monolith.cli.new import new
from monolith.cli.talk import fail
from monolith.errors import MonolithError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Example: monolith data head logs/\n\nTrain recommendation models on ids that never end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(help="Example: monolith new ranker.py\n\nWrite a task file that trains as it is.")(new)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line: 0, 1 on failure, 2 on wrong usage, 130 on Ctrl-C; no tracebacks."""
    try:
        app()
    except (MonolithError, OSError, ValueError, TypeError, NotImplementedError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted", status=130)


if __name__ == "__main__":
    main()
