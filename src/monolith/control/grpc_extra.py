"""Import gRPC, which the extra `cluster` installs, on first use."""

from typing import Any

from monolith.errors import FailedPreconditionError


def load_grpc() -> Any:
    """Return the module `grpc`.

    Raises:
        FailedPreconditionError: gRPC or protobuf is not installed.
    """
    try:
        import grpc
        from google import protobuf
    except ImportError as error:
        raise FailedPreconditionError(
            "[control] expected gRPC and protobuf, got none; install them with: "
            "pip install 'monolith-torch[cluster]'"
        ) from error
    assert protobuf
    return grpc
