"""The command `monolith`."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from monolith.cli.talk import fail
from monolith.errors import MonolithError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = ("new", "train", "inspect", "data", "env")
"""Each is a module of this package, with its command as `app`."""


class _Commands(TyperGroup):
    """Imports a command when it is asked for: the completion of a name does not wait for torch."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(import_module(f"monolith.cli.{cmd_name}").app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Commands,
    help="Example: monolith new ranker.py && monolith train ranker.py\n\n"
    "Train recommendation models on ids that never end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options() -> None:
    """None but those of typer; it makes a group of the app."""


def main() -> None:
    """Run the command line: 0, 1 on failure, 2 on wrong usage, 130 on Ctrl-C; no tracebacks."""
    try:
        app(prog_name="monolith")
    except (MonolithError, OSError, ValueError, TypeError, NotImplementedError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted", status=130)


if __name__ == "__main__":
    main()
