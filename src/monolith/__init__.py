"""Embedding tables with any int64 key, trained and served with PyTorch.

`import monolith` loads nothing else; a subpackage is imported when it is first used.

Example:
    >>> import monolith
    >>> monolith.errors.NotFoundError.__mro__[1].__name__
    'OpError'
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolith import data, embedding, errors, nn, ops, optim, train, util

__all__ = ["__version__", "data", "embedding", "errors", "nn", "ops", "optim", "train", "util"]

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
