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
    from monolith import checkpoint, cluster, data, errors, nn, ops, optim, table, train
    from monolith.cluster import ShardedTable
    from monolith.data import Batch
    from monolith.nn import Embedding, EmbeddingBag, Feature, Features
    from monolith.ops import Ragged
    from monolith.table import Budget, Expiry, MinCount, Segment, Table, TableConfig
    from monolith.table.optimizers import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
    from monolith.train import (
        EarlyStop,
        Inputs,
        Mode,
        Task,
        TaskSettings,
        Trainer,
        TrainSettings,
    )

__version__ = "0.1.0"

# What most programs need, by the package that it comes from.
_NAMES = MappingProxyType(
    {
        "Adagrad": "table",
        "Adam": "table",
        "Batch": "data",
        "Budget": "table",
        "EarlyStop": "train",
        "Embedding": "nn",
        "EmbeddingBag": "nn",
        "Expiry": "table",
        "FTRL": "table",
        "Feature": "nn",
        "Features": "nn",
        "Inputs": "train",
        "MinCount": "table",
        "Mode": "train",
        "Ragged": "ops",
        "RowWiseAdagrad": "table",
        "SGD": "table",
        "Segment": "table",
        "ShardedTable": "cluster",
        "Table": "table",
        "TableConfig": "table",
        "Task": "train",
        "TaskSettings": "train",
        "TrainSettings": "train",
        "Trainer": "train",
    }
)
_MODULES = ("checkpoint", "cluster", "data", "errors", "nn", "ops", "optim", "table", "train")

__all__ = [
    "Adagrad",
    "Adam",
    "Batch",
    "Budget",
    "EarlyStop",
    "Embedding",
    "EmbeddingBag",
    "Expiry",
    "FTRL",
    "Feature",
    "Features",
    "Inputs",
    "MinCount",
    "Mode",
    "Ragged",
    "RowWiseAdagrad",
    "SGD",
    "Segment",
    "ShardedTable",
    "Table",
    "TableConfig",
    "Task",
    "TaskSettings",
    "TrainSettings",
    "Trainer",
    "__version__",
    "checkpoint",
    "cluster",
    "data",
    "errors",
    "nn",
    "ops",
    "optim",
    "table",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
