"""Random selection of samples: for `Pipeline.sample`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.operations.draws import Draws
from monolith.data.operations.label_columns import label_of, set_labels, times_weight
from monolith.data.operations.parse import entries, integers
from monolith.data.operations.sample_rows import Mask, Rows, floats_of, set_column


@dataclass(frozen=True)
class NegativeSample:
    """Drops negatives at random, and can correct the shift of the prediction.

    A model trained on all positives and a share r of the negatives predicts odds that are too large
    by 1 / r. Either the kept negatives have weight 1 / r (`correction="weight"`), or the model is
    trained on `logits - log(r)` and served without the offset (`correction="offset"` adds a column
    of log(r)).

    Args:
        drop_rate: share of the negatives to drop, 0 to 1.
        label_index: index of the label that decides.
        threshold: least label of a positive; all positives are kept.
        action_priority: actions, the best first: `2,3,1`.
        per_action_drop_rate: entries `action:rate,...`: drop rates of negatives by their best
            action, which is greater than 0; `drop_rate` applies to other negatives.
        seed: seed of the random numbers.
        correction: whether to multiply weights by 1 / r, or to add the column of log(r).
        label: column of the labels.
        actions: column of the actions.
        weight: column of the weights; a missing column counts as ones.
        offset: name of the column of log(r).

    Raises:
        ValueError: a rate is outside 0 to 1, or has no correction.

    Example:
        >>> block = pa.record_batch({"label": pa.array([1, -1, -1], pa.float32())})
        >>> NegativeSample(1.0)(block, Draws(0, 0)).num_rows
        1
    """

    drop_rate: float
    label_index: int = 0
    threshold: float = 0.0
    action_priority: str | Sequence[int] = ()
    per_action_drop_rate: str = ""
    seed: int = 0
    correction: Literal["weight", "offset"] | None = None
    label: str = "label"
    actions: str = "actions"
    weight: str = "instance_weight"
    offset: str = "log_odds_offset"
    _priority: tuple[int, ...] = field(init=False, repr=False)
    _rates: tuple[tuple[int, float], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where = "[NegativeSample]"
        rates = entries(where, self.per_action_drop_rate, int, float, least=2)
        object.__setattr__(self, "_priority", integers(where, self.action_priority))
        object.__setattr__(self, "_rates", tuple((a, r) for a, r in rates if a > 0))
        for rate in (self.drop_rate, *(rate for _, rate in rates)):
            if not 0.0 <= rate <= 1.0:
                raise ValueError(f"{where} expected rates from 0 to 1, got {rate}")
        if self.correction not in (None, "weight", "offset"):
            raise ValueError(
                f'{where} expected correction "weight", "offset" or None, got {self.correction!r}'
            )
        if self.correction == "offset" and (rates or self.drop_rate == 1.0):
            raise ValueError(
                f"{where} expected one drop_rate below 1 for an offset, got {self.drop_rate} and "
                f'{len(rates)} rates of actions; take correction="weight"'
            )

    @property
    def adds(self) -> Columns:
        """Column of the correction."""
        if self.correction == "offset":
            return Columns(dense=[self.offset])
        return Columns(weight=self.weight if self.correction == "weight" else None)

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        names = {self.label, *([self.actions] if self._rates else [])}
        return frozenset(names | {self.weight} if self.correction == "weight" else names)

    def __call__(self, block: pa.RecordBatch, draws: Draws) -> pa.RecordBatch:
        """Return the kept samples."""
        labels = label_of("[NegativeSample]", block, self.label, self.label_index)
        is_negative = labels < self.threshold
        rates = self._drop_rates(block)
        keep = ~is_negative | (draws.uniform(block.num_rows, self.seed) >= rates)
        if self.correction == "offset":
            offset = np.full(block.num_rows, math.log1p(-self.drop_rate), np.float32)
            block = set_column(block, self.offset, offset)
        elif self.correction == "weight":
            counts_for = 1.0 / np.maximum(1.0 - rates, np.finfo(np.float32).tiny)
            factors = np.where(is_negative, counts_for, 1.0).astype(np.float32)
            block = times_weight(block, self.weight, factors)
        return block if keep.all() else block.filter(pa.array(keep))

    def _drop_rates(self, block: pa.RecordBatch) -> np.ndarray:
        if not self._rates:
            return np.full(block.num_rows, self.drop_rate)
        best = Rows.of("[NegativeSample]", block, self.actions).best(self._priority)
        rates_by_action = dict(self._rates)
        values_by_place = [rates_by_action.get(action, self.drop_rate) for action in self._priority]
        # The last entry is for samples without a listed action.
        return np.array([*values_by_place, self.drop_rate])[best]


@dataclass(frozen=True)
class SpecialStrategy:
    """Keeps samples by the first strategy of a list that a sample has.

    Args:
        strategy_list: strategies, the deciding one first: `7,8`.
        strategy_conf: entries `strategy:rate[:label],...`: the share of samples to keep, and the
            new first label. Samples of a strategy without an entry are kept unchanged.
        keep_empty_strategy: whether to keep samples without a strategy of the list.
        seed: seed of the random numbers.
        strategies: column of the strategies.
        label: column of the labels.

    Raises:
        ValueError: a rate is outside 0 to 1.

    Example:
        >>> block = pa.record_batch({"special_strategies": pa.array([7, 8, 9])})
        >>> SpecialStrategy("7,8", "8:0.0")(block, Draws(0, 0))["special_strategies"].to_pylist()
        [7, 9]
    """

    strategy_list: str | Sequence[int]
    strategy_conf: str = ""
    keep_empty_strategy: bool = True
    seed: int = 0
    strategies: str = "special_strategies"
    label: str = "label"
    _listed: tuple[int, ...] = field(init=False, repr=False)
    _conf: tuple[tuple[float, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where = "[SpecialStrategy]"
        conf = entries(where, self.strategy_conf, int, float, float, least=2)
        object.__setattr__(self, "_listed", integers(where, self.strategy_list))
        object.__setattr__(self, "_conf", tuple(map(tuple, conf)))
        for _, rate, *_ in conf:
            if not 0.0 <= rate <= 1.0:
                raise ValueError(f"{where} expected rates from 0 to 1, got {rate}")

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read."""
        return frozenset({self.strategies, self.label})

    def __call__(self, block: pa.RecordBatch, draws: Draws) -> pa.RecordBatch:
        """Return the kept samples."""
        best = Rows.of("[SpecialStrategy]", block, self.strategies).best(self._listed)
        rates = {int(strategy): rate for strategy, rate, *_ in self._conf}
        values_by_place = [rates.get(strategy, 1.0) for strategy in self._listed]
        keep_rates = np.array([*values_by_place, float(self.keep_empty_strategy)])[best]
        keep: Mask = draws.uniform(block.num_rows, self.seed) < keep_rates
        block = self._relabel(block, best)
        return block if keep.all() else block.filter(pa.array(keep))

    def _relabel(self, block: pa.RecordBatch, best: np.ndarray) -> pa.RecordBatch:
        labels_of = {int(strategy): label[0] for strategy, _, *label in self._conf if label}
        relabelled = [strategy in labels_of for strategy in self._listed]
        is_new = np.array([*relabelled, False])[best]
        if not is_new.any():
            return block
        labels = floats_of("[SpecialStrategy]", block, self.label)
        values_by_place = [labels_of.get(strategy, 0.0) for strategy in self._listed]
        labels[is_new, 0] = np.array([*values_by_place, 0.0])[best[is_new]]
        return set_labels(block, self.label, labels)
