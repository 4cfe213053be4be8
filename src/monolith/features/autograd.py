"""Lookups that torch differentiates: backward queues gradients, a step applies them.

In eager mode a lookup is a `torch.autograd.Function`; under torch.compile and torch.export it is
the op `monolith::lookup_bags`. Neither changes the table, so that a graph may run a lookup again
(activation checkpointing does) without harm.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from monolith.features.core import CoreEngine
from monolith.features.engine import BagFeature
from monolith.features.gradients import (
    FeatureQueue,
    GradientQueue,
    check_eager,
    holders_of,
    own,
    queue_at,
    queue_once,
)
from monolith.features.graph_ops import lookup_features
from monolith.ops import Ragged
from monolith.table.bags import Bags
from monolith.table.base import BaseTable
from monolith.table.native import empty


class Reading(NamedTuple):
    """How keys become pooled rows.

    Attributes:
        mode: of the bags.
        missing: what a missing key reads as.
        padding: a key that is left out of its bag.
        is_trained: whether backward queues gradients.
    """

    mode: str
    missing: str
    padding: int | None
    is_trained: bool


def lookup_bags(
    queue: GradientQueue,
    anchor: torch.Tensor,
    keys: torch.Tensor,
    row_splits: torch.Tensor | int,
    weights: torch.Tensor | None,
    reading: Reading,
) -> torch.Tensor:
    """Pooled rows that backward knows about, float32 (num_bags, dim).

    Args:
        queue: of the table.
        anchor: of the queue, as the module has it: while torch traces, a stand-in.
        keys: int64 (num_keys,), contiguous.
        row_splits: int64 (num_bags + 1,); or the number of bags of equally many keys, which may
            have any shape then. While torch traces, a tensor.
        weights: float32 (num_keys,) of the keys in a sum; they get gradients too.
        reading: how.
    """
    mode, missing, padding, is_trained = reading
    if not is_trained:
        anchor = anchor.detach()
    if torch.compiler.is_compiling():
        values, _ = torch.ops.monolith.lookup_bags(
            anchor, keys, row_splits, weights, queue.handle, mode, missing, padding
        )
        assert isinstance(values, torch.Tensor)
        return values
    check_eager(queue, anchor)
    if padding is None and weights is None:
        bags, is_kept = Bags.unchecked(keys, row_splits, mode), None
    else:
        bags, is_kept = _without_padding(keys.reshape(-1), row_splits, weights, mode, padding)
    if torch.is_grad_enabled() and (anchor.requires_grad or _requires_grad(weights)):
        lookup = _Lookup(queue, bags, is_kept, missing)
        found = _LookupBags.apply(anchor, weights, lookup)  # type: ignore[no-untyped-call]
        assert isinstance(found, torch.Tensor)
        return found
    return queue.lookup(bags, missing).values


def _requires_grad(weights: torch.Tensor | None) -> bool:
    return weights is not None and weights.requires_grad


def _without_padding(
    keys: torch.Tensor,
    row_splits: torch.Tensor | int,
    weights: torch.Tensor | None,
    mode: str,
    padding: int | None,
) -> tuple[Bags, torch.Tensor | None]:
    """The bags without the padding key, and which keys are left, bool (num_keys,); None: all."""
    weights = None if weights is None else weights.detach()
    bags = Bags(keys, row_splits, mode, weights)
    if padding is None:
        return bags, None
    is_kept = keys != padding
    num_kept = torch.nn.functional.pad(is_kept.cumsum(0), (1, 0))  # before each key
    weights = None if weights is None else weights[is_kept]
    return Bags(keys[is_kept], num_kept[bags.splits()], mode, weights), is_kept


def _weight_gradients(
    queue: GradientQueue,
    bags: Bags,
    is_kept: torch.Tensor | None,
    gradients: torch.Tensor,
    missing: str,
) -> torch.Tensor:
    """Of every weight, (num_keys,); of a padding key 0."""
    found = queue.table.bag_weight_gradients(bags, gradients, missing=missing, step=queue.step)
    if is_kept is None:
        return found
    return found.new_zeros(len(is_kept)).masked_scatter_(is_kept, found)


class _Lookup(NamedTuple):
    """What `_LookupBags` takes beside the tensors that get gradients; torch handles it as one."""

    queue: GradientQueue
    bags: Bags
    is_kept: torch.Tensor | None
    missing: str


class _LookupBags(torch.autograd.Function):
    """The eager lookup."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, weights: torch.Tensor | None, lookup: _Lookup
    ) -> torch.Tensor:
        """Pooled rows."""
        bags = lookup.bags
        pooled = lookup.queue.lookup(bags, lookup.missing)
        ctx.lookup, ctx.winners = lookup, pooled.winners
        # Saved so that torch notices a change of them, and a backward after the graph was freed.
        splits = bags.row_splits
        ctx.save_for_backward(bags.keys, None if isinstance(splits, int) else splits, bags.weights)
        return pooled.values

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Queues the gradients; the rest is done in a step."""
        return queue_once(_queue_gradients, ctx, gradients)


def _queue_gradients(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    _ = ctx.saved_tensors
    # The caller may use its memory again before the step.
    gradients = gradients.clone(memory_format=torch.contiguous_format)
    queue, bags, is_kept, missing = ctx.lookup
    of_anchor = of_weights = None
    is_anchor_trained, is_weight_trained, _ = ctx.needs_input_grad
    if is_anchor_trained:
        of_anchor = queue.push(bags, gradients, ctx.winners)
    if is_weight_trained:
        of_weights = _weight_gradients(queue, bags, is_kept, gradients, missing)
    return of_anchor, of_weights, None


# The same as ops. Their arguments are tensors and plain values; a table is named by its handle.


@torch.library.custom_op(
    "monolith::lookup_bags",
    mutates_args=(),
    schema="(Tensor anchor, Tensor keys, Tensor row_splits, Tensor? weights, int handle, str mode, "
    "str missing, int? padding) -> (Tensor, Tensor)",
)
def _lookup_op(
    anchor: torch.Tensor,
    keys: torch.Tensor,
    row_splits: torch.Tensor,
    weights: torch.Tensor | None,
    handle: int,
    mode: str,
    missing: str,
    padding: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    queue = queue_at(handle)
    bags, _ = _without_padding(keys, row_splits, weights, mode, padding)
    pooled = queue.lookup(bags, missing)
    winners = pooled.winners
    return pooled.values, _no_winners() if winners is None else winners


@_lookup_op.register_fake
def _(
    anchor: torch.Tensor, keys: Any, row_splits: torch.Tensor, weights: Any, *options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    handle, mode, *_ = options
    values = anchor.new_empty((row_splits.shape[0] - 1, queue_at(handle).table.dim))
    return values, values.new_empty(values.shape if mode == "max" else (0,), dtype=torch.int32)


@torch.library.custom_op(
    "monolith::push_gradient",
    mutates_args=(),
    schema="(Tensor gradients, Tensor keys, Tensor row_splits, Tensor? weights, Tensor winners, "
    "int handle, str mode, int? padding, int number) -> Tensor",
)
def _push_op(
    gradients: torch.Tensor,
    keys: torch.Tensor,
    row_splits: torch.Tensor,
    weights: torch.Tensor | None,
    winners: torch.Tensor,
    handle: int,
    mode: str,
    padding: int | None,
    number: int,
) -> torch.Tensor:
    bags, _ = _without_padding(keys, row_splits, weights, mode, padding)
    # The graph uses the memory of its tensors again.
    gradients, won = gradients.clone(memory_format=torch.contiguous_format), None
    if mode == "max":
        won = winners.clone()
    return queue_at(handle).push(bags, gradients, won)


@_push_op.register_fake
def _(gradients: torch.Tensor, *_: Any) -> torch.Tensor:
    return gradients.new_empty(1)


@torch.library.custom_op(
    "monolith::bag_weight_gradients",
    mutates_args=(),
    schema="(Tensor gradients, Tensor keys, Tensor row_splits, Tensor weights, int handle, "
    "str missing, int? padding) -> Tensor",
)
def _weight_gradients_op(
    gradients: torch.Tensor,
    keys: torch.Tensor,
    row_splits: torch.Tensor,
    weights: torch.Tensor,
    handle: int,
    missing: str,
    padding: int | None,
) -> torch.Tensor:
    bags, is_kept = _without_padding(keys, row_splits, weights, "sum", padding)
    return _weight_gradients(queue_at(handle), bags, is_kept, gradients.contiguous(), missing)


@_weight_gradients_op.register_fake
def _(gradients: Any, keys: Any, row_splits: Any, weights: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(weights)


def _no_winners() -> torch.Tensor:
    return torch.empty(0, dtype=torch.int32, device="cpu")


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, keys, row_splits, weights, ctx.handle, ctx.mode, ctx.missing, ctx.padding = inputs
    ctx.save_for_backward(keys, row_splits, weights, output[1])


def _backward(
    ctx: Any, gradients: torch.Tensor, _: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    keys, row_splits, weights, winners = ctx.saved_tensors
    ops, of_anchor, of_weights = torch.ops.monolith, None, None
    if ctx.needs_input_grad[0]:
        # Equal calls in a graph are merged into one. The number, drawn when the graph is made,
        # keeps the pushes of two equal lookups apart.
        queue = queue_at(ctx.handle)
        queue.num_traced += 1
        of_anchor = ops.push_gradient(
            gradients,
            keys,
            row_splits,
            weights,
            winners,
            ctx.handle,
            ctx.mode,
            ctx.padding,
            queue.num_traced,
        )
    if ctx.needs_input_grad[3]:
        of_weights = ops.bag_weight_gradients(
            gradients, keys, row_splits, weights, ctx.handle, ctx.missing, ctx.padding
        )
    return of_anchor, None, None, of_weights, None, None, None, None


_lookup_op.register_autograd(_backward, setup_context=_save)


_WHERE = "[FeatureBags]"


class FeatureBags:
    """Features over tables, for a model that reads all of them in every batch.

    A lookup is one call for all features; backward sums the gradients of equal keys of each table
    in one call, and a step of `monolith.optim.Optimizer` updates all tables in one call. Backward
    and step mean what they do for `monolith.nn.EmbeddingBag` (docs/drop_in.md): a module shows the
    optimizer its `queue`, and torch the anchor of it.

    Lookups may run beside each other and beside a step; one thread trains at a time.

    Args:
        tables: any tables of one kind, with different names.
        features: with different names; several may share a table.

    Attributes:
        queue: gradients between backward and step.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Segment, Table, TableConfig, Zeros
        >>> user = Table(TableConfig("user", Segment(1, SGD(1.0), Zeros())))
        >>> item = Table(TableConfig("item", Segment(2, SGD(1.0), Zeros())))
        >>> bags = FeatureBags([user, item], [BagFeature("id", "user"), BagFeature("seen", "item")])
        >>> ids = {"id": Ragged.from_lists([[7]]), "seen": Ragged.from_lists([[7, 8]])}
        >>> bags.lookup(ids).sum().backward()
        >>> bags.queue.apply()
        >>> bags.lookup(ids)[:, bags.columns["seen"]]
        tensor([[-2., -2.]], grad_fn=<SliceBackward0>)
    """

    def __init__(self, tables: Iterable[BaseTable], features: Sequence[BagFeature]) -> None:
        given = list(tables)
        _check_tables(given)
        _check_features(features, {table.name for table in given})
        self.queue = FeatureQueue(CoreEngine(given, features))

    @property
    def features(self) -> tuple[BagFeature, ...]:
        """In the order of the columns."""
        return self.queue.engine.features

    @property
    def columns(self) -> Mapping[str, slice]:
        """Of the output, by feature."""
        return MappingProxyType(self.queue.engine.columns)

    @property
    def width(self) -> int:
        """Columns of the output."""
        return self.queue.engine.width

    @property
    def tables(self) -> Mapping[str, BaseTable]:
        """By name."""
        return MappingProxyType({table.name: table for table in self.queue.tables})

    def lookup(
        self,
        ids: Mapping[str, Ragged],
        *,
        dense: torch.Tensor | None = None,
        missing: str = "initial",
        is_trained: bool = True,
    ) -> torch.Tensor:
        """The rows of all features side by side; float32 (batch, width), or (batch, width + n).

        Nothing is stored. The ids are copied: the caller may use their memory again.

        Args:
            ids: int64 or int32 of every feature, a row for each sample; others are left alone.
            dense: float32 (batch, n), put behind the columns of the features as `torch.cat` would,
                but without a copy of those, or of their gradients. Rows of the result may lie apart
                in memory then.
            missing: what an id without a row reads as, "initial" or "zeros", as in `Table.lookup`.
            is_trained: whether backward queues gradients.
        """
        if missing not in ("initial", "zeros"):
            raise ValueError(
                f"[FeatureBags.lookup] expected missing 'initial' or 'zeros', got {missing!r}"
            )
        queue = self.queue
        anchor = queue.anchor if is_trained else queue.anchor.detach()
        if torch.compiler.is_compiling():
            return lookup_features(queue, anchor, ids, dense, missing)
        check_eager(queue, anchor)
        if anchor.requires_grad and torch.is_grad_enabled():
            found = _LookupFeatures.apply(anchor, dense, _FeatureLookup(queue, ids, missing))  # type: ignore[no-untyped-call]
            assert isinstance(found, torch.Tensor)
            return found
        joined = queue.engine.lookup(ids, missing, dense)[0]
        if dense is None or not (dense.requires_grad and torch.is_grad_enabled()):
            return joined
        return torch.cat([joined[:, : self.width], dense], 1)


class _FeatureLookup(NamedTuple):
    """What `_LookupFeatures` takes beside the anchor."""

    queue: FeatureQueue
    ids: Mapping[str, Ragged]
    missing: str


class _LookupFeatures(torch.autograd.Function):
    """The lookup as torch differentiates it."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, dense: torch.Tensor | None, lookup: _FeatureLookup
    ) -> torch.Tensor:
        """Rows of all features, and dense columns."""
        queue, ids, missing = lookup
        values, ctx.batch = queue.engine.lookup(ids, missing, dense)
        ctx.queue = queue
        ctx.save_for_backward(empty(0))  # so that torch refuses a graph that was freed
        return values

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Queues the gradients; the rest is done in a step."""
        return queue_once(_queue_feature_gradients, ctx, gradients)


def _queue_feature_gradients(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    _ = ctx.saved_tensors
    queue: FeatureQueue = ctx.queue
    is_alone = holders_of(gradients) == queue.holders_alone
    dense = gradients[:, queue.engine.width :].clone() if ctx.needs_input_grad[1] else None
    return queue.push(ctx.batch, own(gradients, is_alone)), dense, None


def _check_tables(tables: list[BaseTable]) -> None:
    """Refuse what cannot be called together."""
    if not tables:
        raise ValueError(f"{_WHERE} expected at least one table, got none")
    for table in tables:
        if not isinstance(table, BaseTable):
            raise TypeError(f"{_WHERE} expected tables as Table, got {type(table).__name__}")
        table._check_open("features")
        if table.config.kind != tables[0].config.kind:
            raise ValueError(
                f"{_WHERE} expected tables of one kind, got {tables[0].config.kind} (table "
                f"{tables[0].name!r}) and {table.config.kind} (table {table.name!r})"
            )
    _check_different("tables", [table.name for table in tables])


def _check_features(features: Sequence[BagFeature], tables: set[str]) -> None:
    """Refuse features that are none, of a table that is not there, or twice the same."""
    if not features:
        raise ValueError(f"{_WHERE} expected at least one feature, got none")
    for feature in features:
        if not isinstance(feature, BagFeature):
            raise TypeError(
                f"{_WHERE} expected features as BagFeature, got {type(feature).__name__}"
            )
        if feature.table not in tables:
            raise ValueError(
                f"{_WHERE} expected a table in {', '.join(sorted(tables))}, got {feature.table!r} "
                f"(feature {feature.name!r})"
            )
    _check_different("features", [feature.name for feature in features])


def _check_different(what: str, names: list[str]) -> None:
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise ValueError(
            f"{_WHERE} expected {what} with different names, got several of {', '.join(twice)}"
        )
