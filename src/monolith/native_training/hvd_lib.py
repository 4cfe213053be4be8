"""Give the collectives of synchronous training, from a backend that the first use chooses.

`MONOLITH_WITH_BYTEPS`, an integer, selects BytePS; otherwise the backend is `torch.distributed`:
`init`, `rank`, `size`, `allgather`, `broadcast`, `broadcast_parameters`, `shutdown`, `group` and
`BroadcastGlobalVariablesHook` (`native_training/collectives/torch_ranks.py`). Nothing is imported
before the first use of one of these names.
"""

import threading
from importlib import import_module
from typing import Any

from monolith.environment import is_byteps_wanted
from monolith.errors import FailedPreconditionError


class _Lib:
    """The backend of this process, chosen once, by the first use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enable_bps: bool | None = None
        self._lib: Any = None

    @property
    def enable_bps(self) -> bool:
        """Whether the backend is BytePS."""
        with self._lock:
            return self._choice()

    @property
    def lib(self) -> Any:
        """The module of the backend.

        Raises:
            FailedPreconditionError: BytePS is selected and not installed.
        """
        with self._lock:
            if self._lib is None:
                self._lib = _load_byteps() if self._choice() else _load_torch()
            return self._lib

    def _choice(self) -> bool:
        if self._enable_bps is None:
            self._enable_bps = is_byteps_wanted()
        return self._enable_bps


def _load_torch() -> Any:
    return import_module("monolith.native_training.collectives.torch_ranks")


def _load_byteps() -> Any:
    try:
        return import_module("byteps.torch")
    except ImportError as error:
        raise FailedPreconditionError(
            "[hvd_lib] expected the package byteps, which MONOLITH_WITH_BYTEPS selects, got none; "
            "install it, or unset the variable to use torch.distributed"
        ) from error


_LIB = _Lib()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("enable_bps", "lib"):
        return getattr(_LIB, name)
    return getattr(_LIB.lib, name)
