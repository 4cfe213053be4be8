"""Embedding tables with any int64 key, trained and served with PyTorch.

`import monolith` loads nothing else; a subpackage is imported when it is first used.

Example:
    >>> import monolith
    >>> monolith.errors.NotFoundError.__mro__[1].__name__
    'OpError'
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolith import cluster, data, errors, nn, ops, optim, table, train, util
    from monolith.nn import EmbeddingBag, Feature, Features
    from monolith.table import MinCount, Segment
    from monolith.table.optimizers import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
    from monolith.train import Inputs, Mode, Task, TaskSettings, Trainer, TrainSettings

__version__ = "0.1.0"

# What a task file needs, by the module that it comes from.
_NAMES = MappingProxyType(
    {
        "Adagrad": "table",
        "Adam": "table",
        "EmbeddingBag": "nn",
        "FTRL": "table",
        "Feature": "nn",
        "Features": "nn",
        "Inputs": "train",
        "MinCount": "table",
        "Mode": "train",
        "RowWiseAdagrad": "table",
        "SGD": "table",
        "Segment": "table",
        "Task": "train",
        "TaskSettings": "train",
        "TrainSettings": "train",
        "Trainer": "train",
    }
)
_MODULES = ("cluster", "data", "errors", "nn", "ops", "optim", "table", "train", "util")

__all__ = [
    "Adagrad",
    "Adam",
    "EmbeddingBag",
    "FTRL",
    "Feature",
    "Features",
    "Inputs",
    "MinCount",
    "Mode",
    "RowWiseAdagrad",
    "SGD",
    "Segment",
    "Task",
    "TaskSettings",
    "TrainSettings",
    "Trainer",
    "__version__",
    "cluster",
    "data",
    "errors",
    "nn",
    "ops",
    "optim",
    "table",
    "train",
    "util",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
