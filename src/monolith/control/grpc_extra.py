"""Import grpcio and protobuf, which the extra `cluster` installs, on first use."""

from importlib import import_module
from typing import Any

from monolith.errors import FailedPreconditionError


def load_grpc() -> Any:
    """Return the module `grpc`; the generated messages can be imported, too.

    Raises:
        FailedPreconditionError: grpcio or protobuf is not installed.
    """
    try:
        import_module("google.protobuf")
        import grpc
    except ImportError as error:
        raise FailedPreconditionError(
            "[control] expected grpcio and protobuf, got none; install them with: "
            "pip install 'monolith-torch[cluster]'"
        ) from error
    return grpc


def load_messages(name: str) -> Any:
    """Return the generated messages of a service: "controller" or "operation"."""
    load_grpc()
    return import_module(f"monolith.control.{name}_pb2")
