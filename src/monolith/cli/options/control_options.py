"""Options of the controller of a run."""

from typing import TYPE_CHECKING, Annotated

import typer

from monolith.cli.console import fail

if TYPE_CHECKING:
    from monolith.control import ControlOptions

Control = Annotated[
    bool | None,
    typer.Option("--control/--no-control", help="Let `monolith control` stop, resume and save."),
]
Bind = Annotated[
    str | None, typer.Option("--control-bind", metavar="HOST:PORT", help="Address of --control.")
]
Certificate = Annotated[
    str | None, typer.Option("--control-cert", metavar="FILE", help="Certificate for TLS, in PEM.")
]
Key = Annotated[
    str | None, typer.Option("--control-key", metavar="FILE", help="Key of the certificate.")
]
Insecure = Annotated[
    bool, typer.Option("--control-insecure", help="Allow other machines without TLS.")
]


def control_options(
    control: bool | None,
    bind: str | None,
    cert: str | None,
    key: str | None,
    *,
    insecure: bool,
    directory: str | None,
) -> "ControlOptions | None":
    """Return where the controller listens; None starts none. Wrong options end the program.

    Args:
        control: Whether a controller was asked for; None was not said.
        bind: Address.
        cert: File of a certificate.
        key: File of its key.
        insecure: Whether other machines may connect without TLS.
        directory: Folder of the checkpoints.
    """
    others = {"--control-bind": bind, "--control-cert": cert, "--control-key": key}
    alone = [name for name, value in others.items() if value is not None]
    alone += ["--control-insecure"] * insecure
    if not control:
        if alone:
            fail(f"expected --control with {alone[0]}, got none", status=2)
        return None
    if directory is None:
        fail("expected --checkpoints DIR with --control, got none: the address is there", status=2)
    from monolith.control import ControlOptions  # late: other commands do not need it

    try:
        return ControlOptions(bind or "127.0.0.1:0", cert, key, insecure)
    except ValueError as error:
        fail(str(error), status=2)
