"""Access to the compiled core: every other module loads `monolith._native` from here."""

import os
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType

import monolith


def load_native() -> ModuleType:
    """Return the compiled core, loading it on the first call. Safe from any thread.

    Raises:
        ImportError: the library is missing or the dynamic loader refuses it; the message names
            the file and the loader's reason.

    Example:
        >>> load_native().__name__
        'monolith._native'
    """
    try:
        return import_module("monolith._native")
    except ImportError as error:
        raise ImportError(
            f"[load_native] expected the compiled core at {_library_path()}, got: {error}; "
            "reinstall monolith-torch, or run `make build` in a checkout",
            name="monolith._native",
            path=_library_path(),
        ) from error


def _library_path() -> str:
    """Return the path of the library, or the path that a build for this Python would create."""
    stem = os.path.join(monolith.__path__[0], "_native")
    candidates = [stem + suffix for suffix in EXTENSION_SUFFIXES]
    return next(filter(os.path.exists, candidates), candidates[0])
