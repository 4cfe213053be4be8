"""Options of the controller of a run."""

from typing import TYPE_CHECKING, Annotated

import typer

from monolith.cli.console import fail

if TYPE_CHECKING:
    from monolith.control import ControlOptions

Control = Annotated[
    bool | None,
    typer.Option("--control/--no-control", help="Obey `monolith control`."),
]
Bind = Annotated[
    str | None, typer.Option("--control-bind", metavar="HOST:PORT", help="Address of --control.")
]
Tls = Annotated[
    str | None,
    typer.Option("--control-tls", metavar="CERT,KEY", help="PEM files for --control-bind."),
]


def control_options(
    control: bool | None, bind: str | None, tls: str | None, *, directory: str | None
) -> "ControlOptions | None":
    """Return where the controller listens; None starts none. Wrong options end the program.

    Args:
        control: Whether a controller was asked for; None was not said.
        bind: Address.
        tls: Files of a certificate and its key, with a comma between them.
        directory: Folder of the checkpoints.
    """
    if not control:
        for name, value in (("--control-bind", bind), ("--control-tls", tls)):
            if value is not None:
                fail(f"expected --control with {name}, got none", status=2)
        return None
    if directory is None:
        fail("expected --checkpoints DIR with --control, got none: the address is there", status=2)
    cert, comma, key = (tls or "").partition(",")
    if tls is not None and not (cert and comma and key):
        fail(f"expected --control-tls as CERT,KEY, got {tls!r}", status=2)
    from monolith.control import ControlOptions  # late: other commands do not need it

    try:
        return ControlOptions(bind or "127.0.0.1:0", cert or None, key or None)
    except ValueError as error:
        fail(str(error), status=2)
