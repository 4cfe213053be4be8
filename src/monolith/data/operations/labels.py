"""New labels from actions and other columns: for `Pipeline.map`, `AddLabel` for `Pipeline.sample`.

The labels of a sample are one column, float32 or lists of one width. A missing label is
`INVALID_LABEL`, the most negative float32; `FilterByLabel` drops samples without another label.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from monolith.data.columns import INVALID_LABEL, Columns
from monolith.data.hashing import hash_strings
from monolith.data.operations.draws import Draws
from monolith.data.operations.parse import entries, integers
from monolith.data.operations.sample_rows import (
    Floats,
    Ids,
    Rows,
    floats_of,
    positions_in,
    set_column,
)


@dataclass(frozen=True)
class _Task:
    positives: tuple[int, ...]
    negatives: tuple[int, ...]
    rate: float


def _task(text: str) -> _Task:
    where, parts = "[AddLabel]", text.split(":")
    if len(parts) != 3:
        raise ValueError(f"{where} expected positives:negatives:rate, got {text!r}")
    task = _Task(integers(where, parts[0]), integers(where, parts[1]), float(parts[2]))
    if not task.positives:
        raise ValueError(f"{where} expected at least one positive action, got {text!r}")
    if set(task.positives) & set(task.negatives):
        raise ValueError(f"{where} expected other negative than positive actions, got {text!r}")
    if not 0.0 <= task.rate <= 1.0:
        raise ValueError(f"{where} expected a rate from 0 to 1, got {text!r}")
    return task


@dataclass(frozen=True)
class AddLabel:
    """Appends a label for each task, computed from the actions of a sample.

    A sample with a positive action gets 1. A sample with a negative action, or any other sample if
    the task has no negative actions, gets `negative_value` with the probability of the task's rate.
    All other samples get `INVALID_LABEL`. An existing first label of at most 0 becomes invalid.

    Args:
        config: tasks `positives:negatives:rate` joined by `;`, such as `1,2:3:1.0;4::0.5`.
        negative_value: label of negatives.
        new_sample_rate: value of the new column `sample_rate`, in (0, 1].
        seed: seed of the random numbers.
        label: column of the labels, which may not exist yet.
        actions: column of the actions.
        sample_rate: name of the column of the sample rate.

    Raises:
        ValueError: the config breaks a rule.

    Example:
        >>> block = pa.record_batch({"actions": pa.array([[1, 4], [3]])})
        >>> labels = AddLabel("1,2:3:1.0;4::1.0", -1.0, 1.0)(block, Draws(0, 0))["label"]
        >>> labels.to_pylist()
        [[1.0, 1.0], [-1.0, -1.0]]
    """

    config: str
    negative_value: float
    new_sample_rate: float
    seed: int = 0
    label: str = "label"
    actions: str = "actions"
    sample_rate: str = "sample_rate"
    _tasks: tuple[_Task, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.new_sample_rate <= 1.0:
            raise ValueError(
                f"[AddLabel] expected new_sample_rate above 0 and up to 1, got "
                f"{self.new_sample_rate}"
            )
        tasks = tuple(_task(text) for text in self.config.split(";"))
        object.__setattr__(self, "_tasks", tasks)

    @property
    def adds(self) -> Columns:
        """Column of the labels, if it is new, and column of the sample rate."""
        return Columns(dense=[self.sample_rate], labels=[self.label])

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.actions, self.label})

    def __call__(self, block: pa.RecordBatch, draws: Draws) -> pa.RecordBatch:
        """Return the samples with their new labels."""
        actions = Rows.of("[AddLabel]", block, self.actions)
        labels = np.zeros((block.num_rows, 0), np.float32)
        if self.label in block.schema.names:
            labels = floats_of("[AddLabel]", block, self.label)
            labels[labels[:, 0] <= 0, 0] = INVALID_LABEL
        new = [self._label(actions, task, draws, at) for at, task in enumerate(self._tasks)]
        block = set_column(block, self.label, np.column_stack([labels, *new]))
        rates = np.full(block.num_rows, self.new_sample_rate, np.float32)
        return set_column(block, self.sample_rate, rates)

    def _label(self, actions: Rows, task: _Task, draws: Draws, stream: int) -> Floats:
        is_positive = actions.any(positions_in(actions.values, task.positives) >= 0)
        is_negative = ~is_positive
        if task.negatives:
            is_negative &= actions.any(positions_in(actions.values, task.negatives) >= 0)
        if task.rate < 1.0:
            is_negative &= draws.uniform(len(actions), self.seed, stream) < task.rate
        values = np.array([INVALID_LABEL, self.negative_value, 1.0], np.float32)
        return values[is_negative + 2 * is_positive]


@dataclass(frozen=True)
class ScatterLabel:
    """Moves the first label to a place that depends on the channel; all other labels are invalid.

    Args:
        config: entries `channel:index,...`; samples of other channels have invalid labels only.
        channel: column of the channel.
        label: column of the labels.

    Raises:
        ValueError: an index is negative, or the config is empty.

    Example:
        >>> block = pa.record_batch({"chnid": [200], "label": pa.array([3], pa.float32())})
        >>> ScatterLabel("100:0,200:1")(block)["label"].to_pylist()
        [[-3.4028234663852886e+38, 3.0]]
    """

    config: str
    channel: str = "chnid"
    label: str = "label"
    _places: tuple[tuple[int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        places = entries("[ScatterLabel]", self.config, int, int, least=2)
        object.__setattr__(self, "_places", tuple((channel, at) for channel, at in places))
        _check_places("[ScatterLabel]", [at for _, at in self._places], None)

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.channel, self.label})

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the samples with their new labels."""
        where = "[ScatterLabel]"
        channels = Rows.of(where, block, self.channel).first()
        values = floats_of(where, block, self.label)[:, 0]
        known = positions_in(channels, [channel for channel, _ in self._places])
        indices = [at for _, at in self._places]
        return set_column(block, self.label, _scatter(known, indices, max(indices) + 1, values))


def _check_places(where: str, places: Sequence[int], task_num: int | None) -> None:
    if not places:
        raise ValueError(f"{where} expected at least one place of a label, got none")
    most = max(places) if task_num is None else task_num - 1
    for at in places:
        if not 0 <= at <= most:
            raise ValueError(f"{where} expected places of labels from 0 to {most}, got {at}")


def _scatter(known: Ids, places: Sequence[int], width: int, values: Floats) -> Floats:
    """Return labels with each value at the place of its sample; -1 in `known` means no place."""
    labels = np.full((len(values), width), INVALID_LABEL, np.float32)
    samples = np.flatnonzero(known >= 0)
    labels[samples, np.array(places)[known[samples]]] = values[samples]
    return labels


@dataclass(frozen=True)
class MultiLabel:
    """Creates labels of several heads by a column that names the head and by the best action.

    Args:
        head_to_index: head -> place of its label. A head is a number, or a string, which is hashed
            like the strings of a source.
        head_field: column of the head.
        pos_actions: actions of positives.
        neg_actions: actions of negatives; samples with neither are invalid.
        use_origin_label: whether to use the existing first label instead of actions.
        pos_label: label of positives.
        neg_label: label of negatives.
        action_priority: actions, the best first. The first action of a sample counts if none of its
            actions is listed.
        task_num: number of labels; None means one more than the last place.
        label: column of the labels.
        actions: column of the actions.

    Raises:
        ValueError: an action is both positive and negative, or a place is out of range.

    Example:
        >>> block = pa.record_batch({"chnid": [7, 8], "actions": pa.array([[2], [1]])})
        >>> multi = MultiLabel({7: 0, 8: 0}, pos_actions=[2], neg_actions=[1])
        >>> multi(block)["label"].to_pylist()
        [[1.0], [0.0]]
    """

    head_to_index: Mapping[int | str, int]
    head_field: str = "chnid"
    pos_actions: Sequence[int] = ()
    neg_actions: Sequence[int] = ()
    use_origin_label: bool = False
    pos_label: float = 1.0
    neg_label: float = 0.0
    action_priority: str | Sequence[int] = ()
    task_num: int | None = None
    label: str = "label"
    actions: str = "actions"
    _heads: tuple[int, ...] = field(init=False, repr=False)
    _priority: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where, both = "[MultiLabel]", set(self.pos_actions) & set(self.neg_actions)
        if both:
            raise ValueError(
                f"{where} expected other negative than positive actions, got {sorted(both)} in both"
            )
        _check_places(where, list(self.head_to_index.values()), self.task_num)
        object.__setattr__(self, "_heads", tuple(_head_id(head) for head in self.head_to_index))
        object.__setattr__(self, "_priority", integers(where, self.action_priority))

    @property
    def adds(self) -> Columns:
        """Column of the labels, if it is new."""
        return Columns(labels=[self.label])

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.head_field, self.label if self.use_origin_label else self.actions})

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the samples with their new labels."""
        where, places = "[MultiLabel]", list(self.head_to_index.values())
        known = positions_in(Rows.of(where, block, self.head_field).first(), self._heads)
        if self.use_origin_label:
            values = floats_of(where, block, self.label)[:, 0]
        else:
            values = self._labels_of_actions(Rows.of(where, block, self.actions))
        width = max(places) + 1 if self.task_num is None else self.task_num
        return set_column(block, self.label, _scatter(known, places, width, values))

    def _labels_of_actions(self, actions: Rows) -> Floats:
        best = actions.best_or_first(self._priority)
        kinds = [1] * len(self.pos_actions) + [2] * len(self.neg_actions)
        known = positions_in(best, [*self.pos_actions, *self.neg_actions], len(kinds))
        kind = np.array([*kinds, 0])[known] * ~actions.is_empty()
        values = np.array([INVALID_LABEL, self.pos_label, self.neg_label], np.float32)
        return np.asarray(values[kind])


def _head_id(head: int | str) -> int:
    return int(hash_strings(pa.array([head]))[0]) if isinstance(head, str) else head
