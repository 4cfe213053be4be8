"""Settings that come from the environment; no other module reads it."""

import os

_METRIC_PREFIX = "MONOLITH_METRIC_PREFIX"


def metric_prefix() -> str:
    """What the names of all metrics begin with: `MONOLITH_METRIC_PREFIX`."""
    return os.environ.get(_METRIC_PREFIX, "monolith.training")


def set_metric_prefix(prefix: str) -> None:
    """Set `metric_prefix`, of this process and of those that it starts from now on."""
    os.environ[_METRIC_PREFIX] = prefix


def tests_directory() -> str:
    """Where tests may write: `TEST_TMPDIR`."""
    return os.environ.get("TEST_TMPDIR", "/tmp")


def variables(*prefixes: str) -> dict[str, str]:
    """Variables whose names begin with one of the prefixes, by name."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(prefixes)}
