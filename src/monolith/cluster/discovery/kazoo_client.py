"""`MonolithKazooClient`: a client of ZooKeeper with the credentials of the environment."""

from typing import Any

from monolith.environment import variables
from monolith.errors import FailedPreconditionError

_AUTH = "ZK_AUTH"


def load_kazoo() -> Any:
    """Return the module `kazoo.client`.

    Raises:
        FailedPreconditionError: kazoo is not installed.
    """
    try:
        import kazoo.client
    except ImportError as error:
        raise FailedPreconditionError(
            "[ZooKeeper] expected kazoo for a discovery in ZooKeeper, got none; install it with: "
            "pip install 'monolith-torch[zk]'"
        ) from error
    return kazoo.client


def get_zk_auth_data() -> list[tuple[str, str]] | None:
    """Return the digest credentials of the variable `ZK_AUTH`, "user:password"; None without."""
    text = variables(_AUTH).get(_AUTH)
    return [("digest", text)] if text else None


class MonolithKazooClient:
    """Makes a `kazoo.client.KazooClient` with the credentials of `ZK_AUTH`.

    Arguments are those of a `KazooClient`. `auth_data` of the caller goes before `ZK_AUTH`. What
    the call returns is a `KazooClient`: kazoo is imported at the first call.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the client."""
        if not kwargs.get("auth_data"):
            kwargs["auth_data"] = get_zk_auth_data()
        return load_kazoo().KazooClient(*args, **kwargs)
