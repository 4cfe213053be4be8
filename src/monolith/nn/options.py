"""What a module's table is made of, and what the torch classes take that ours refuse."""

from types import MappingProxyType
from typing import Any, TypedDict

import torch

from monolith.table import Segment, Table, TableConfig
from monolith.table.base import BaseTable
from monolith.table.calls import Clock
from monolith.table.initializers import Initializer
from monolith.table.optimizers import Optimizer
from monolith.table.precision import View
from monolith.table.rules import Admission, Budget, Expiry

DEFAULT_NAME = "embedding"
"""Name of a table that was given none."""


class TableOptions(TypedDict, total=False):
    """Options of the table of a module; those of `Segment`, `TableConfig` and `Table`.

    Without `name` and `seed`, the seed of initial values is drawn from torch's generator, so that
    `torch.manual_seed` decides it and two modules differ. With a name it is that of the name.
    """

    name: str
    seed: int
    optimizer: Optimizer
    initializer: Initializer
    precision: str
    view: View | None
    admission: Admission | None
    expiry: Expiry | None
    budget: Budget | None
    non_finite: str
    clip_value: float | None
    clock: Clock
    changes_bytes: int


_SEGMENT_OPTIONS = ("optimizer", "initializer", "precision", "view")
_TABLE_OPTIONS = ("clock", "changes_bytes")

REFUSED_ARGUMENTS = MappingProxyType(
    {
        "num_embeddings": "leave it out: any int64 is a key, and rows come when they are trained",
        "embedding_dim": "pass it as dim, the first argument",
        "max_norm": "clip gradients, or rescale rows with table.export() and table.import_rows()",
        "norm_type": "it belongs to max_norm, which tables do not have",
        "scale_grad_by_freq": "use per_sample_weights, or an optimizer that adapts by row",
        "sparse": "leave it out: gradients are sparse always",
        "_weight": "use from_pretrained(weights, keys)",
        "_freeze": "use requires_grad_(False)",
        "device": "rows stay in main memory; move the output with .to(device)",
        "dtype": "use precision='fp16' or 'bf16' for the rows; outputs are float32",
    }
)
"""Arguments of the torch classes that ours do not take -> the way out."""

REFUSED_ATTRIBUTES = MappingProxyType(
    {
        "weight": "read rows with table.lookup(keys) or table.export()",
        **{name: REFUSED_ARGUMENTS[name] for name in ("num_embeddings", "max_norm", "norm_type")},
        **{name: REFUSED_ARGUMENTS[name] for name in ("scale_grad_by_freq", "sparse")},
    }
)
"""Attributes of the torch classes that ours do not have -> the way out."""


def check_options(where: str, options: Any) -> None:
    """Refuse what is no option of a table, by name."""
    for name in options:
        if name in REFUSED_ARGUMENTS:
            raise TypeError(f"{where} has no argument {name}: {REFUSED_ARGUMENTS[name]}")
        if name not in TableOptions.__annotations__:
            known = ", ".join(sorted(TableOptions.__annotations__))
            raise TypeError(f"{where} has no argument {name}; options of its table are {known}")


def make_table(dim: int, options: TableOptions) -> BaseTable:
    """A new table of one segment."""
    given: dict[str, Any] = {"name": DEFAULT_NAME, **options}
    if "name" not in options and "seed" not in options:
        given["seed"] = int(torch.randint(0, (1 << 63) - 1, (), device="cpu"))
    segment = Segment(dim, **{k: given.pop(k) for k in _SEGMENT_OPTIONS if k in given})
    of_table = {k: given.pop(k) for k in _TABLE_OPTIONS if k in given}
    return Table(TableConfig(segments=segment, **given), **of_table)
