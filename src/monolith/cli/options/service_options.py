"""Read from the data service of `--data-service`, in `monolith train` and `monolith worker`."""

from typing import TYPE_CHECKING, Annotated

import typer

from monolith.cli.console import fail

if TYPE_CHECKING:
    from monolith.cluster.data_service import ServiceSource

DataService = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Read from the data service of this dispatcher."),
]


def service_source(address: str | None, keys: str | None) -> "ServiceSource | None":
    """Return the source of `--data-service`; None without the option."""
    if address is None:
        return None
    from monolith.cluster.data_service import ServiceOptions, ServiceSource
    from monolith.cluster.data_service.service_caller import service_address
    from monolith.cluster.zmq.curve_keys import read_keys

    try:
        service_address(address)
        options = ServiceOptions(address, None if keys is None else read_keys(keys))
    except ValueError as error:
        fail(str(error), status=2)
    return ServiceSource(options)
