"""Texts of the command line for errors of a user."""

import linecache
import sys
import traceback

from monolith.errors import MonolithError

TASK_MODULE = "monolith_task_"
"""Prefix of the module name of a task file."""


def text_of_mistake(error: Exception) -> str | None:
    """Return the text of an error, with its line of the task file; None for our own bugs."""
    place = _place(error)
    user_error = MonolithError | OSError | ValueError | TypeError | NotImplementedError
    if not place:
        return str(error) if isinstance(error, user_error) else None
    # A KeyError shows its text in quotes.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    if not isinstance(error, MonolithError | OSError) and not text.startswith("["):
        text = f"{type(error).__name__}: {text}"
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "train")
    return f"{text}\n  {place}\n  all of it: monolith --traceback {command} ..."


def text_of_exit(end: SystemExit) -> str | None:
    """Return the text for a task file that exits the program; None if other code did."""
    place = _place(end)
    if not place:
        return None
    code = "" if end.code is None else repr(end.code)
    return (
        "[task file] expected the run to end by its data, its steps or a hook, got "
        f"sys.exit({code}); raise an error instead, or let a hook request a stop\n  {place}"
    )


def _place(error: BaseException) -> str:
    """Return the innermost line of a task file in the traceback of an error, else an empty text."""
    place = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").startswith(TASK_MODULE):
            code = frame.f_code
            linecache.checkcache(code.co_filename)
            line = linecache.getline(code.co_filename, number).strip()
            place = f"{code.co_filename}, line {number}, in {code.co_name}: {line}"
    return place
