"""Changes by the actions of samples: appended actions and repeated samples; for `Pipeline.map`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from monolith.data.columns import INVALID_LABEL
from monolith.data.operations.comparison import Comparison, Operand, operands_of
from monolith.data.operations.label_columns import set_labels
from monolith.data.operations.parse import entries, integers
from monolith.data.operations.sample_rows import (
    Ids,
    Rows,
    column_of,
    floats_of,
    positions_in,
    set_column,
)

_UNLISTED, _EMPTY = 1000, 2000  # priorities of samples without a listed action, and without actions


@dataclass(frozen=True)
class AddAction:
    """Appends an action to the samples for which a comparison holds; see `Comparison`.

    Args:
        column: name of the compared column.
        op: name of the comparison.
        operand: operand, or sequence of operands.
        action: action to append.
        actions: column of the actions, which has lists.

    Example:
        >>> stay, actions = pa.array([3.0, 9.0], pa.float32()), pa.array([[1], []])
        >>> block = pa.record_batch({"stay": stay, "actions": actions})
        >>> AddAction("stay", "ge", 5, 7)(block)["actions"].to_pylist()
        [[1], [7]]
    """

    column: str
    op: str
    operand: Operand = field(repr=False)
    action: int
    actions: str = "actions"
    comparison: Comparison = field(init=False)

    def __post_init__(self) -> None:
        comparison = Comparison("[AddAction]", self.op, operands_of(self.operand))
        object.__setattr__(self, "comparison", comparison)

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.column, self.actions})

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the samples with their new actions."""
        where = "[AddAction]"
        holds = self.comparison(column_of(where, block, self.column))
        actions = Rows.of(where, block, self.actions)
        lengths = np.ones(len(actions), np.int64) if actions.lengths is None else actions.lengths
        values = np.insert(actions.values, np.cumsum(lengths)[holds], self.action)
        return set_column(block, self.actions, Rows(values, lengths + holds).to_arrow())


@dataclass(frozen=True)
class InstanceReweight:
    """Repeats or removes samples by their best action and by the actions of an earlier training.

    A sample may come twice: first with provisional actions, then with final actions and the
    provisional ones as `pre_actions`. The second sample is repeated such that both together have
    the weight of the final actions. The weight of a sample is the product of the weights of its
    best action and of its unlisted actions.

        no actions before       number of copies: weight
        another label           number of copies: sum of both weights
        same label              number of copies: difference of the weights; the label changes its
                                sign if the first weight is larger
        actions before as good  removed; one copy if there are no actions at all

    Args:
        action_priority: actions, the best first.
        reweight: entries `action:weight:label,...`; the label replaces the sample's first label if
            the action is its best action. Actions without an entry have weight 1 and change no
            label.
        actions: column of the actions.
        pre_actions: column of the earlier actions.
        label: column of the labels; samples without a valid label are removed.

    Example:
        >>> nothing = pa.array([[], []], pa.list_(pa.int64()))
        >>> columns = {"actions": pa.array([[1], [2]]), "pre_actions": nothing}
        >>> block = pa.record_batch({**columns, "label": pa.array([0, 0], pa.float32())})
        >>> InstanceReweight("1,2", "1:2:1,2:1:-1")(block)["label"].to_pylist()
        [1.0, 1.0, -1.0]
    """

    action_priority: str | Sequence[int]
    reweight: str
    actions: str = "actions"
    pre_actions: str = "pre_actions"
    label: str = "label"
    _priority: tuple[int, ...] = field(init=False, repr=False)
    _weights: tuple[tuple[int, int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where = "[InstanceReweight]"
        weights = entries(where, self.reweight, int, int, int, least=3)
        object.__setattr__(self, "_priority", integers(where, self.action_priority))
        object.__setattr__(self, "_weights", tuple((a, w, label) for a, w, label in weights))
        for action, weight, _ in self._weights:
            if weight < 0:
                raise ValueError(
                    f"{where} expected weights of at least 0, got {weight} (action {action})"
                )

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.actions, self.pre_actions, self.label})

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the repeated samples."""
        where = "[InstanceReweight]"
        labels = floats_of(where, block, self.label)
        now = self._read(Rows.of(where, block, self.actions))
        before = self._read(Rows.of(where, block, self.pre_actions))
        is_valid = labels[:, 0] != np.float32(INVALID_LABEL)
        is_better = before.priority > now.priority
        relabelled = is_better & now.has_label
        labels[relabelled, 0] = now.label[relabelled]
        is_same = is_better & before.has_label & (labels[:, 0] == before.label)
        is_other = is_better & before.has_label & ~is_same
        labels[is_same & (before.weight > now.weight), 0] *= -1
        count = np.where(is_better, now.weight, 0)
        count[is_other] += before.weight[is_other]
        count[is_same] = np.abs(before.weight - now.weight)[is_same]
        count[(before.priority == _EMPTY) & (now.priority == _EMPTY)] = 1
        times = np.repeat(np.arange(block.num_rows), np.where(is_valid, count, 0))
        return set_labels(block, self.label, labels).take(pa.array(times))

    def _read(self, actions: Rows) -> "_ActionLabels":
        listed, entered = self._priority, [action for action, _, _ in self._weights]
        best = actions.best(listed)
        priority = np.array([*range(1, len(listed) + 1), _UNLISTED])[best]
        priority[actions.is_empty()] = _EMPTY
        listed_places = positions_in(np.array(listed, np.int64), entered)
        place = np.append(listed_places, -1)[best]  # place of the best action among the entries
        weights = np.array([*(weight for _, weight, _ in self._weights), 1])
        factors = weights[positions_in(actions.values, entered)]
        factors[positions_in(actions.values, listed) >= 0] = 1
        weight = actions.reduce(np.multiply, factors, 1) * weights[place]
        weight[actions.is_empty()] = 0
        labels = np.array([*(label for _, _, label in self._weights), 0])
        return _ActionLabels(priority, weight, place >= 0, labels[place])


@dataclass(frozen=True, slots=True)
class _ActionLabels:
    """Weights and labels of the actions of each sample."""

    priority: Ids
    weight: Ids
    has_label: np.ndarray
    label: Ids
