"""Discoveries of the command line, and the part of this process that some of them fix."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import typer

from monolith.cli.console import fail
from monolith.cluster.discovery import Place, ServiceDiscovery, open_discovery
from monolith.cluster.discovery.uris import place_of
from monolith.errors import OpError

_T = TypeVar("_T")


def opened(uri: str) -> ServiceDiscovery:
    """Return the discovery of an option; a wrong or silent one ends the program."""
    return _or_fail(open_discovery, uri)


def place(uri: str | None, kind: str | None = None) -> Place | None:
    """Return the part of this process that the discovery of an option fixes; None without one.

    Args:
        uri: Value of the option; None without it.
        kind: Kind of process that the command runs; None for any.
    """
    found = None if uri is None else _or_fail(place_of, uri)
    if found is not None and kind not in (None, found.name):
        fail(
            f"expected a {kind} as the process that {uri} describes, got {found.name} "
            f"{found.index}; run `monolith {found.name}`",
            status=2,
        )
    return found


def _or_fail(call: Callable[[str], _T], uri: str) -> _T:
    try:
        return call(uri)
    except ValueError as error:
        fail(str(error), status=2)
    except (OpError, OSError) as error:
        fail(str(error))


def bind_of(uri: str, context: typer.Context, fixed: Place) -> str:
    """Return the address to listen at: that of the place, or a --bind with its port.

    A machine may know its address by another name, so that another host is no contradiction.

    Args:
        uri: Value of the option with the discovery.
        context: Context of a command with the parameter `bind`.
        fixed: Part of this process.
    """
    is_default = not _is_explicit(context, "bind")
    bind = str(context.params["bind"])
    if is_default:
        return fixed.address
    if bind.rpartition(":")[2] != fixed.address.rpartition(":")[2]:
        fail(
            f"expected --bind with the port of {fixed.address} as {uri} says, got --bind {bind}; "
            "leave --bind out",
            status=2,
        )
    return bind


def refuse_others(uri: str, context: typer.Context, fixed: Mapping[str, Any]) -> None:
    """End the program if an option contradicts what a discovery fixes.

    Args:
        uri: Value of the option with the discovery.
        context: Context of the command.
        fixed: Name of a parameter -> the value that it must have.
    """
    for name, value in fixed.items():
        if _is_explicit(context, name) and context.params[name] != value:
            option = f"--{name.replace('_', '-')}"
            fail(
                f"expected {option} {value} as {uri} says, got {option} {context.params[name]}; "
                f"leave {option} out",
                status=2,
            )


def _is_explicit(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and not source.name.startswith("DEFAULT")
