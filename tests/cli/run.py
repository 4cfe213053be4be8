"""The command line, run in this process."""

from typing import NamedTuple

from monolith.cli.main import main


class Ran(NamedTuple):
    status: int
    out: str
    err: str


def run(capsys, monkeypatch, *arguments):
    """The exit status and what was printed."""
    monkeypatch.setattr("sys.argv", ["monolith", *map(str, arguments)])
    try:
        main()
    except SystemExit as end:
        status = end.code or 0
    else:
        status = 0
    printed = capsys.readouterr()
    return Ran(status, printed.out, printed.err)
