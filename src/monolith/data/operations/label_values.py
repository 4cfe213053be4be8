"""Changes of label values, and a label for ranking: for `Pipeline.map`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.data.columns import INVALID_LABEL
from monolith.data.operations.label_columns import at_least, set_labels
from monolith.data.operations.sample_rows import Rows, column_of, floats_of, set_column

_METHODS = ("log", "scale", "scale2int", "pow", "repow", "scalelog")
_Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LabelUpperBound:
    """Limits labels to upper bounds.

    Args:
        label_upper_bounds: upper bounds of the first labels.
        label: column of the labels.

    Example:
        >>> block = pa.record_batch({"label": pa.array([1, 9], pa.float32())})
        >>> LabelUpperBound([5])(block)["label"].to_pylist()
        [1.0, 5.0]
    """

    label_upper_bounds: Sequence[float]
    label: str = "label"

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.label})

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the samples with their new labels.

        Raises:
            ValueError: there are fewer labels than bounds.
        """
        count = len(self.label_upper_bounds)
        labels = at_least("[LabelUpperBound]", block, self.label, count, "bound")
        bounds = np.array(self.label_upper_bounds, np.float32)
        labels[:, :count] = np.minimum(labels[:, :count], bounds)
        return set_labels(block, self.label, labels)


@dataclass(frozen=True)
class LabelNormalization:
    """Applies methods to every label, one after another; invalid labels stay.

        log        ln(max(x + v, 0))          pow       (x + 1) ** v
        scale      x / v                      repow     x ** v, or 0 where x <= 0
        scale2int  x / v without fraction     scalelog  ln(max(x / v + 1, 0))

    Args:
        norm_methods: names of the methods.
        norm_values: v of each method.
        label: column of the labels.

    Raises:
        ValueError: a method is unknown, or the number of values differs.

    Example:
        >>> block = pa.record_batch({"label": pa.array([0, 1], pa.float32())})
        >>> LabelNormalization(["scale", "repow"], [0.5, 3])(block)["label"].to_pylist()
        [0.0, 8.0]
    """

    norm_methods: Sequence[str]
    norm_values: Sequence[float]
    label: str = "label"

    def __post_init__(self) -> None:
        if len(self.norm_methods) != len(self.norm_values):
            raise ValueError(
                f"[LabelNormalization] expected a value for each of {len(self.norm_methods)} "
                f"methods, got {len(self.norm_values)}"
            )
        for method in self.norm_methods:
            if method not in _METHODS:
                raise ValueError(
                    f"[LabelNormalization] expected a method of {' '.join(_METHODS)}, got "
                    f"{method!r}"
                )

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.label})

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the samples with their new labels."""
        labels = floats_of("[LabelNormalization]", block, self.label)
        is_valid = labels != np.float32(INVALID_LABEL)
        values = labels[is_valid].astype(np.float64)
        with np.errstate(divide="ignore"):  # the logarithm of 0 is -inf
            for method, v in zip(self.norm_methods, self.norm_values, strict=True):
                values = _normalize(method, values, v)
        labels[is_valid] = values
        return set_labels(block, self.label, labels)


def _normalize(method: str, x: _Doubles, v: float) -> _Doubles:
    if method == "log":
        return np.log(np.maximum(x + v, 0.0))
    if method == "scale":
        return x / v
    if method == "scale2int":
        return np.trunc(x / v)
    if method == "pow":
        return np.asarray((x + 1.0) ** v)
    if method == "repow":
        return np.where(x > 0, np.maximum(x, 0.0) ** v, 0.0)
    return np.log(np.maximum(x / v + 1.0, 0.0))


@dataclass(frozen=True)
class RankLabel:
    """Appends the label of a ranking output.

    Args:
        by: `draw`: 1 if the column is not 0. `channel`: 0 and 1 stay, other channels become 2.
            `rank`: the rank, at most `rank_num - 1`.
        column: column of ids or numbers from which the label is computed.
        rank_num: number of ranks.
        label: column of the labels.

    Raises:
        ValueError: `by` is unknown.

    Example:
        >>> block = pa.record_batch({"rank": [3, 99], "label": pa.array([0, 1], pa.float32())})
        >>> RankLabel("rank", "rank")(block)["label"].to_pylist()
        [[0.0, 3.0], [1.0, 17.0]]
    """

    by: Literal["draw", "channel", "rank"]
    column: str
    rank_num: int = 18
    label: str = "label"

    def __post_init__(self) -> None:
        if self.by not in ("draw", "channel", "rank"):
            raise ValueError(
                f'[RankLabel] expected by "draw", "channel" or "rank", got {self.by!r}'
            )

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.column, self.label})

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the samples with one more label."""
        where = "[RankLabel]"
        if column_of(where, block, self.column).type == pa.float32():
            values = floats_of(where, block, self.column)[:, 0]
        else:
            values = Rows.of(where, block, self.column).first().astype(np.float32)
        if self.by == "draw":
            values = values != 0
        elif self.by == "channel":
            values = np.where((values == 0) | (values == 1), values, 2)
        else:
            values = np.minimum(values, self.rank_num - 1)
        labels = np.column_stack([floats_of(where, block, self.label), values])
        return set_column(block, self.label, labels.astype(np.float32))
