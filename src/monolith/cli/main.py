"""The command `monolith`: its subcommands and its exit status."""

import os
import sys
import traceback
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from monolith.cli.console import fail
from monolith.cli.options.panels import set_panels
from monolith.cli.tasks.task_imports import TaskImportError
from monolith.cli.user_errors import text_of_exit, text_of_mistake

COMMANDS = MappingProxyType(
    {
        "new": "new",
        "demo": "demo",
        "train": "train",
        "launch": "launch",
        "ps": "ps",
        "worker": "worker",
        "control": "control",
        "keys": "keys",
        "inspect": "inspect",
        "import": "import_command",  # `import` is a keyword of Python
        "export": "export",
        "data": "data",
        "data-service": "data_service",
        "env": "env",
    }
)
"""Name of each subcommand -> its module of this package, which has a Typer object `app`."""


class _Commands(TyperGroup):
    """Imports a command on its first use, so that the completion of a name needs no torch."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(import_module(f"monolith.cli.{COMMANDS[cmd_name]}").app)
        command.name = cmd_name
        set_panels(command)
        return command


app = typer.Typer(
    cls=_Commands,
    help="Example: monolith new ranker.py && monolith train ranker.py\n\n"
    "Train recommendation models whose embedding tables grow with the data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    ctx: typer.Context,
    with_traceback: Annotated[
        bool, typer.Option("--traceback", help="Print the whole traceback of an error.")
    ] = False,
) -> None:
    """Store the options that stand before the subcommand."""
    ctx.obj["with_traceback"] = with_traceback


def main() -> None:
    """Run the command line and exit: 0, 1 on failure, 2 on wrong usage, 130 or 143 after a signal.

    A traceback is printed for a bug of this package, or with `--traceback`.
    """
    options = {"with_traceback": False}
    try:
        app(prog_name="monolith", obj=options)
    except BrokenPipeError:  # the reader of stdout closed the pipe, as `head` does
        # For output that is still buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except SystemExit as end:
        text = text_of_exit(end)
        if text is None:
            raise
        fail(text, status=end.code if isinstance(end.code, int) and end.code else 1)
    except KeyboardInterrupt:
        fail("interrupted", status=130)
    except Exception as error:
        if options["with_traceback"]:
            traceback.print_exception(error)
        text = text_of_mistake(error)
        if text is None:
            raise
        fail(text, status=2 if isinstance(error, TaskImportError) else 1)


if __name__ == "__main__":
    main()
