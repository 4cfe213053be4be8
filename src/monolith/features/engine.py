"""What a feature takes from a batch, and where its rows go."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from monolith.ops import Ragged
from monolith.ops.ragged import name_of
from monolith.table.arguments import as_integer, as_keys

COMBINERS = ("sum", "mean", "sqrtn", "first")
"""What becomes of a sample's rows: one row, or with "first" the rows of the first ids."""

_MAX_LENGTH = (1 << 31) - 1


@dataclass(frozen=True)
class BagFeature:
    """A named list of ids in each sample, and how the rows of a table become its columns.

    ```
    ids of a sample    7 8 9        rows a b c
    sum, mean, sqrtn   a + b + c, times 1, 1 / 3, 1 / sqrt(3)   # (dim,)
    first, 2           a b                                      # (2, dim), zeros behind the last
    ```

    Args:
        name: of the feature in a batch.
        table: name of the table; several features may share one.
        combiner: "sum", "mean", "sqrtn" or "first".
        max_length: only the first ids of a sample, so many, are used and counted; 0: all of them.
            "first" needs it.

    Example:
        >>> BagFeature("history", "item", "first", max_length=20).num_rows
        20
    """

    name: str
    table: str
    combiner: str = "sum"
    max_length: int = 0

    def __post_init__(self) -> None:
        for field, value in (("name", self.name), ("table", self.table)):
            if not isinstance(value, str) or not value:
                raise TypeError(f"[BagFeature] expected {field} as a name, got {value!r}")
        which = f" (feature {self.name!r})"
        if self.combiner not in COMBINERS:
            raise ValueError(
                f"[BagFeature] expected combiner in {', '.join(COMBINERS)}, "
                f"got {self.combiner!r}{which}"
            )
        length = as_integer("[BagFeature]", "max_length", self.max_length, which)
        least = 1 if self.combiner == "first" else 0
        if not least <= length <= _MAX_LENGTH:
            raise ValueError(
                f"[BagFeature] expected max_length in [{least}, {_MAX_LENGTH}] with combiner "
                f"{self.combiner!r}, got {length}{which}"
            )
        object.__setattr__(self, "max_length", length)

    @property
    def num_rows(self) -> int:
        """Rows of a sample in the output."""
        return self.max_length if self.combiner == "first" else 1


def columns_of(
    features: Iterable[BagFeature], dims: Mapping[str, int]
) -> tuple[dict[str, slice], int]:
    """The columns of each feature, side by side, and how many there are.

    Example:
        >>> columns_of([BagFeature("a", "t"), BagFeature("b", "t", "first", 2)], {"t": 3})
        ({'a': slice(0, 3, None), 'b': slice(3, 9, None)}, 9)
    """
    columns, width = {}, 0
    for feature in features:
        start, width = width, width + feature.num_rows * dims[feature.table]
        columns[feature.name] = slice(start, width)
    return columns, width


def check_ids(features: Iterable[BagFeature], ids: Mapping[str, Ragged]) -> None:
    """Refuse a batch that has not the ids of every feature, or of different numbers of samples."""
    where = "[FeatureBags.lookup]"
    if not isinstance(ids, Mapping):
        raise TypeError(
            f"{where} expected ids as a mapping from features to Ragged, got {type(ids).__name__}"
        )
    names = [feature.name for feature in features]
    missing = [name for name in names if name not in ids]
    if missing:
        shown = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        raise ValueError(f"{where} expected ids of every feature, got none of {shown}")
    for name in names:
        ragged = ids[name]
        if not isinstance(ragged, Ragged):
            raise TypeError(
                f"{where} expected ids of {name!r} as a Ragged, got {type(ragged).__name__}"
            )
        as_keys(where, f"ids of {name!r}", ragged.values)
        if ragged.values.dim() != 1:
            raise ValueError(
                f"{where} expected ids of {name!r} with 1 dimension, got shape "
                f"{tuple(ragged.values.shape)}"
            )
        if ragged.row_splits.dtype != torch.int64:
            raise TypeError(
                f"{where} expected row_splits of {name!r} of dtype int64, got "
                f"{name_of(ragged.row_splits.dtype)}"
            )
        if ragged.num_rows != ids[names[0]].num_rows:
            raise ValueError(
                f"{where} expected {ids[names[0]].num_rows} samples of every feature, as "
                f"{names[0]!r} has, got {ragged.num_rows} (feature {name!r})"
            )


def check_dense(dense: torch.Tensor | None, batch: int) -> None:
    """Refuse dense columns that do not fit beside those of the features."""
    if dense is None:
        return
    where = "[FeatureBags.lookup]"
    if not isinstance(dense, torch.Tensor) or dense.dtype != torch.float32 or not dense.is_cpu:
        got = (
            f"{dense.dtype} on {dense.device}"
            if isinstance(dense, torch.Tensor)
            else type(dense).__name__
        )
        raise TypeError(f"{where} expected dense as a float32 tensor on the CPU, got {got}")
    if dense.dim() != 2 or len(dense) != batch:
        raise ValueError(
            f"{where} expected dense of shape ({batch}, columns), a row for each sample, got "
            f"{tuple(dense.shape)}"
        )
