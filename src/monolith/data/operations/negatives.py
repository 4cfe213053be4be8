"""Negatives with the user of a positive and items of other samples."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.cursor import Cursor, Stage, StageCursor, State
from monolith.data.operations.draws import Draws
from monolith.data.operations.item_pool import ItemPool, Moment
from monolith.data.operations.label_columns import label_of, set_labels, times_weight
from monolith.data.operations.parse import integers
from monolith.data.operations.sample_rows import (
    Ids,
    Mask,
    Rows,
    floats_of,
    positions_in,
    set_column,
)
from monolith.data.stages import concat

_WINDOW = 8192  # number of samples that are processed together
_ONLY_CHANNEL = 3
_LEAVE_ACTIONS = -99999
_LEAST_WEIGHT = 1e-5  # smaller weights count as not given
_POOL, _ITEM, _SWITCH, _CHANNEL = range(4)  # numbers of the random streams


@dataclass(frozen=True)
class NegativeGen:
    """Adds `neg_num` samples to each positive, with its columns and items of other samples.

    Items come from a pool of items seen before; see `ItemPool`. Generated samples precede their
    positive.

    Args:
        neg_num: number of negatives of a positive.
        item: column whose first id names the item.
        item_features: columns that belong to the item; `item` is always one of them.
        channel: column whose first id names the pool; None means one pool. Items of channel 0 are
            not stored.
        start_num: number of items that a pool must exceed before a draw.
        max_item_num: largest number of items of a pool.
        positive_label: label of positives.
        negative_label: label of generated samples.
        negative_action: only action of generated samples; -99999 keeps the actions of the positive.
        positive_actions: a sample with one of these as its best action is a positive; if empty, the
            label decides.
        label_index: index of the label that decides.
        action_priority: actions, the best first; the first action of a sample counts if none is
            listed.
        throw_origin: whether to remove all input samples.
        throw_origin_neg: whether to remove the negatives of the input.
        cache_only_pos: whether to store the items of positives only.
        cache_negative_actions: actions whose samples are stored too, with `cache_only_pos`.
        real_neg_instance_weight: factor of the weights of negatives of the input.
        sampled_neg_instance_weight: weight of generated samples; below 1e-5 means not given.
        unbias_sampled_neg: whether the weight of generated samples is 1; otherwise it is `1 +
            neg_num * time_factor ** neg_sample_declay_factor * freq_factor`; see `Draw`.
        origin_neg_in_pool_proba: probability that the item of a negative is stored.
        neg_sample_declay_factor: exponent of the time factor.
        easy_hard_ratio: probability of an item of any channel, in proportion to their numbers of
            items.
        seed: seed of the random numbers.
        label: column of the labels.
        actions: column of the actions.
        weight: column of the weights; a missing column counts as ones.

    Raises:
        ValueError: a number is out of range, or an action is in both lists.
    """

    neg_num: int
    item: str
    item_features: Sequence[str] = ()
    channel: str | None = None
    start_num: int = 500
    max_item_num: int = 100_000
    positive_label: float = 1
    negative_label: float = -1
    negative_action: int = _LEAVE_ACTIONS
    positive_actions: Sequence[int] = ()
    label_index: int = 0
    action_priority: str | Sequence[int] = ""
    throw_origin: bool = False
    throw_origin_neg: bool = False
    cache_only_pos: bool = False
    cache_negative_actions: Sequence[int] = ()
    real_neg_instance_weight: float = 1.0
    sampled_neg_instance_weight: float = -1.0
    unbias_sampled_neg: bool = True
    origin_neg_in_pool_proba: float = 1.0
    neg_sample_declay_factor: float = 1.0
    easy_hard_ratio: float = 0.0
    seed: int = 0
    label: str = "label"
    actions: str = "actions"
    weight: str = "instance_weight"
    _priority: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where = "[NegativeGen]"
        if self.neg_num < 1:
            raise ValueError(f"{where} expected neg_num of at least 1, got {self.neg_num}")
        for name in ("origin_neg_in_pool_proba", "easy_hard_ratio"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{where} expected {name} from 0 to 1, got {getattr(self, name)}")
        both = set(self.positive_actions) & set(self.cache_negative_actions)
        if both:
            raise ValueError(
                f"{where} expected other cache_negative_actions than positive_actions, got "
                f"{sorted(both)} in both"
            )
        object.__setattr__(self, "_priority", integers(where, self.action_priority))

    @property
    def adds(self) -> Columns:
        """Column of the weight."""
        return Columns(weight=self.weight)

    @property
    def reads(self) -> frozenset[str]:
        """Columns that are read, or replaced in generated samples."""
        names = {self.item, *self.item_features, self.label, self.weight}
        names |= set() if self.channel is None else {self.channel}
        is_new = self.negative_action != _LEAVE_ACTIONS
        has_actions = is_new or self.positive_actions or self.cache_negative_actions
        return frozenset(names | {self.actions} if has_actions else names)

    def new_pool(self) -> ItemPool:
        """Return an empty pool."""
        return ItemPool(self.max_item_num, self.start_num)

    def load_pool(self, path: str) -> ItemPool:
        """Return a saved pool."""
        return ItemPool.load(path, self.max_item_num, self.start_num)

    def __call__(self, block: pa.RecordBatch, draws: Draws, pool: ItemPool) -> pa.RecordBatch:
        """Return the samples with negatives; changes the pool."""
        parts = []
        window = min(_WINDOW, self.max_item_num)
        for first in range(0, block.num_rows, window):
            parts.append(self._window(block.slice(first, window), draws.after(first), pool))
        return concat(parts)

    def _window(self, block: pa.RecordBatch, draws: Draws, pool: ItemPool) -> pa.RecordBatch:
        is_positive = self._positives(block)
        moment = self._take_in(block, draws, pool, is_positive)
        positives = np.flatnonzero(is_positive)
        channel, stored = self._channels(moment, positives, block.num_rows, draws, pool)
        # Every positive draws as long as the pool has items to draw.
        is_drawn = np.logical_and.accumulate((channel >= 0) & pool.is_ready(stored), axis=1)
        chance = draws.uniforms(block.num_rows, self.neg_num, self.seed, _ITEM)[positives]
        drawn = pool.draw(channel[is_drawn], stored[is_drawn], chance[is_drawn])
        num_drawn = np.zeros(block.num_rows, np.int64)
        num_drawn[positives] = is_drawn.sum(axis=1)
        users = block.take(pa.array(np.repeat(np.arange(block.num_rows), num_drawn)))
        factor = drawn.time_factor**self.neg_sample_declay_factor * drawn.freq_factor
        keep = np.full(block.num_rows, not self.throw_origin)
        if self.throw_origin_neg:
            keep &= is_positive
        parts = [times_weight(block, self.weight, self._own_weights(is_positive))]
        parts[0] = parts[0].filter(pa.array(keep))
        if users.num_rows:
            parts.append(self._negatives(users, pool.features(drawn.rows), factor))
        return concat(parts).take(pa.array(_order(num_drawn, keep)))

    def _positives(self, block: pa.RecordBatch) -> Mask:
        where = "[NegativeGen]"
        if not self.positive_actions:
            labels = label_of(where, block, self.label, self.label_index)
            return np.asarray(labels == np.float32(self.positive_label))
        actions = Rows.of(where, block, self.actions)
        best = actions.best_or_first(self._priority)
        return (positions_in(best, self.positive_actions) >= 0) & ~actions.is_empty()

    def _take_in(
        self, block: pa.RecordBatch, draws: Draws, pool: ItemPool, is_positive: Mask
    ) -> Moment:
        where, count = "[NegativeGen]", block.num_rows
        items = Rows.of(where, block, self.item)
        channels = np.full(count, _ONLY_CHANNEL)
        if self.channel is not None:
            channels = Rows.of(where, block, self.channel).first()
        is_stored = np.full(count, not self.cache_only_pos)
        if self.cache_only_pos and self.cache_negative_actions:
            actions = Rows.of(where, block, self.actions)
            is_stored = actions.any(positions_in(actions.values, self.cache_negative_actions) >= 0)
        if self.origin_neg_in_pool_proba < 1.0:
            is_stored &= draws.uniform(count, self.seed, _POOL) < self.origin_neg_in_pool_proba
        is_stored |= is_positive
        is_stored &= ~items.is_empty() & (channels != 0)
        names = list(dict.fromkeys([self.item, *self.item_features]))
        return pool.take_in(channels, items.first(), is_stored, block.select(names))

    def _channels(
        self, moment: Moment, positives: Ids, count: int, draws: Draws, pool: ItemPool
    ) -> tuple[Ids, Ids]:
        """Return channel and number of stored items of each negative, (positives, neg_num)."""
        shape = (len(positives), self.neg_num)
        channel = np.broadcast_to(moment.channel[positives][:, None], shape).copy()
        stored = np.broadcast_to(moment.num_stored[positives][:, None], shape).copy()
        if self.channel is None or self.easy_hard_ratio == 0.0 or len(positives) == 0:
            return channel, stored
        switch = draws.uniforms(count, self.neg_num, self.seed, _SWITCH)[positives]
        chance = draws.uniforms(count, self.neg_num, self.seed, _CHANNEL)[positives]
        all_stored = moment.of_all_channels(positives)  # (positives, channels)
        sums = np.cumsum(pool.sizes(all_stored), axis=1)
        has_choice = (all_stored > 0).sum(axis=1) >= 2
        row, at = np.nonzero((switch < self.easy_hard_ratio) & has_choice[:, None])
        goal = chance[row, at] * sums[row, -1]
        channel[row, at] = (sums[row] > goal[:, None]).argmax(axis=1)
        stored[row, at] = all_stored[row, channel[row, at]]
        return channel, stored

    def _own_weights(self, is_positive: Mask) -> npt.NDArray[np.float32]:
        negative = self.real_neg_instance_weight
        negative = negative if negative > _LEAST_WEIGHT else 1.0
        return np.where(is_positive, 1.0, negative).astype(np.float32)

    def _negatives(
        self, users: pa.RecordBatch, items: pa.RecordBatch, factor: npt.NDArray[np.float64]
    ) -> pa.RecordBatch:
        for name in items.schema.names:
            users = set_column(users, name, items.column(name))
        labels = floats_of("[NegativeGen]", users, self.label)
        labels[:, self.label_index] = self.negative_label
        users = set_labels(users, self.label, labels)
        if self.negative_action != _LEAVE_ACTIONS:
            ones = np.ones(users.num_rows, np.int64)
            actions = Rows(ones * self.negative_action, ones).to_arrow()
            users = set_column(users, self.actions, actions)
        weights = np.ones(users.num_rows)
        if self.sampled_neg_instance_weight > _LEAST_WEIGHT:
            weights *= self.sampled_neg_instance_weight
        elif self.unbias_sampled_neg:
            weights += self.neg_num * factor
        return set_column(users, self.weight, weights.astype(np.float32))


def _order(num_drawn: Ids, keep: Mask) -> Ids:
    """Return the position of each row when kept samples come first, then all negatives."""
    ends = np.cumsum(num_drawn + keep)
    order = np.zeros(ends[-1], np.int64)
    kept_places = ends[keep] - 1
    is_own = np.zeros(ends[-1], np.bool_)
    is_own[kept_places] = True
    order[kept_places] = np.arange(len(kept_places))
    order[~is_own] = len(kept_places) + np.arange(int(num_drawn.sum()))
    return order


@dataclass(frozen=True)
class NegativeStage:
    """Stage that generates negatives.

    The state names the last saved file of the pool, and the number of blocks after it; these blocks
    are re-read to restore the pool. Without a folder, all blocks of the epoch are re-read.

    Args:
        source: previous stage.
        generation: settings of the generation.
        folder: folder for saved pools; None saves no pools.
        save_every: number of samples between two saves.
        num_kept: number of files that are kept; older files are removed.
        initial: file of the pool at the begin of every epoch; None begins with an empty pool.
    """

    source: Stage
    generation: NegativeGen
    folder: Path | None
    save_every: int
    num_kept: int
    initial: Path | None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        name = repr(self.generation)
        if self.initial is not None:  # a state is valid for the same pool only
            name += f" from {hashlib.sha256(self.initial.read_bytes()).hexdigest()[:16]}"
        object.__setattr__(self, "name", name)

    @property
    def reads(self) -> frozenset[str]:
        """See `Stage`."""
        return self.generation.reads

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [*self.source.describe(), self.name]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        return _NegativeCursor(self, epoch, state)


class _NegativeCursor(StageCursor):
    def __init__(self, stage: NegativeStage, epoch: int, state: State | None) -> None:
        self._stage, self._epoch = stage, epoch
        start: State = {"source": None, "first": 0, "blocks": 0, "pool": None}
        start = start if state is None else state
        self._saved, self._first, self._file = start["source"], start["first"], start["pool"]
        super().__init__(stage.source.open(epoch, self._saved))
        self._pool = self._load()
        self._saved_first, self._blocks = self._first, 0
        for _ in range(start["blocks"]):
            self._read()

    def _load(self) -> ItemPool:
        stage, path = self._stage, self._stage.initial
        if self._file is not None:
            path = (stage.folder or Path()) / self._file
        return (
            stage.generation.new_pool() if path is None else stage.generation.load_pool(str(path))
        )

    def _read(self) -> pa.RecordBatch | None:
        block = self._source.next()
        if block is None:
            return None
        draws = Draws(self._epoch, self._first)
        out = self._stage.generation(block, draws, self._pool)
        self._first += block.num_rows
        self._blocks += 1
        return out

    def _save(self) -> None:
        folder = self._stage.folder
        if folder is None or self._first - self._saved_first < self._stage.save_every:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._file = f"pool-{self._epoch:06d}-{self._first:015d}.arrow"
        self._pool.save(folder / self._file)
        self._saved, self._saved_first, self._blocks = self._source.state(), self._first, 0
        files = sorted(folder.glob("pool-*.arrow"), key=lambda path: (len(path.name), path.name))
        for old in files[: -self._stage.num_kept]:
            old.unlink()

    def next(self) -> pa.RecordBatch | None:
        while (out := self._read()) is not None:
            self._save()
            if out.num_rows:
                return out
        return None

    def state(self) -> State:
        return {
            "source": self._saved,
            "first": self._saved_first,
            "blocks": self._blocks,
            "pool": self._file,
        }
