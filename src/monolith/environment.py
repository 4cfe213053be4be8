"""Settings from environment variables; no other module reads the environment."""

import os

_METRIC_PREFIX = "MONOLITH_METRIC_PREFIX"


def metric_prefix() -> str:
    """Return the prefix of all metric names: `MONOLITH_METRIC_PREFIX`, or its default."""
    return os.environ.get(_METRIC_PREFIX, "monolith.training")


def set_metric_prefix(prefix: str) -> None:
    """Set `metric_prefix` for this process and for processes that it starts from now on."""
    os.environ[_METRIC_PREFIX] = prefix


def tests_directory() -> str:
    """Return the directory where tests may write: `TEST_TMPDIR`, or /tmp."""
    return os.environ.get("TEST_TMPDIR", "/tmp")


def announced_host() -> str:
    """Return the address that a launch environment gives this machine; empty without one.

    The first entry of `CLOUDNATIVE_INET_ADDR` comes before `YARN_INET_ADDR`.
    """
    first = os.environ.get("CLOUDNATIVE_INET_ADDR", "").split(",")[0].strip()
    return first or os.environ.get("YARN_INET_ADDR", "").strip()


def app_master_address() -> str:
    """Return the address of Primus' application master; empty unless both variables are set.

    They are `PRIMUS_AM_RPC_HOST` and `PRIMUS_AM_RPC_PORT`.
    """
    host = os.environ.get("PRIMUS_AM_RPC_HOST", "")
    port = os.environ.get("PRIMUS_AM_RPC_PORT", "")
    return f"{host}:{port}" if host and port else ""


def is_synchronous() -> bool:
    """Whether `MONOLITH_WITH_HOROVOD` asks for synchronous training over ranks."""
    return bool(os.environ.get("MONOLITH_WITH_HOROVOD"))


def mpi_rank() -> int | None:
    """Return the rank of this process in an MPI job, `OMPI_COMM_WORLD_RANK`; None without one."""
    text = os.environ.get("OMPI_COMM_WORLD_RANK", "")
    return int(text) if text else None


def tensorboard_path() -> str | None:
    """Return the folder for traces, `TENSORBOARD_LOG_PATH`; None without one."""
    return os.environ.get("TENSORBOARD_LOG_PATH") or None


def variables(*prefixes: str) -> dict[str, str]:
    """Return the variables whose names begin with one of the prefixes, sorted by name."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(prefixes)}
