"""Import pyzmq, which the extra `cluster` installs, on first use."""

from typing import Any

from monolith.errors import FailedPreconditionError


def load_zmq() -> Any:
    """Return the module `zmq`.

    Raises:
        FailedPreconditionError: pyzmq is not installed.
    """
    try:
        import zmq
    except ImportError as error:
        raise FailedPreconditionError(
            "[cluster.zmq] expected pyzmq for tables on other processes, got none; install it "
            "with: pip install 'monolith-torch[cluster]'"
        ) from error
    return zmq
