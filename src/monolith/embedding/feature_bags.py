"""`FeatureBags`: the rows of all features of a batch, in one tensor and one call each way."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from monolith.embedding.anchor_queue import check_eager, queue_once
from monolith.embedding.bag_feature import BagFeature
from monolith.embedding.feature_ops import lookup_features
from monolith.embedding.feature_queue import FeatureQueue
from monolith.embedding.feature_tables import FeatureTables
from monolith.embedding.native_core import empty
from monolith.embedding.ownership import holders_of, own
from monolith.embedding.verbs import TableVerbs
from monolith.ops import Ragged

__all__ = ["FeatureBags"]

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
        >>> from monolith.embedding import SGD, Segment, Table, TableConfig, Zeros
        >>> user = Table(TableConfig("user", Segment(1, SGD(1.0), Zeros())))
        >>> item = Table(TableConfig("item", Segment(2, SGD(1.0), Zeros())))
        >>> bags = FeatureBags([user, item], [BagFeature("id", "user"), BagFeature("seen", "item")])
        >>> ids = {"id": Ragged.from_lists([[7]]), "seen": Ragged.from_lists([[7, 8]])}
        >>> bags.lookup(ids).sum().backward()
        >>> bags.queue.apply()
        >>> bags.lookup(ids)[:, bags.columns["seen"]]
        tensor([[-2., -2.]], grad_fn=<SliceBackward0>)
    """

    def __init__(self, tables: Iterable[TableVerbs], features: Sequence[BagFeature]) -> None:
        given = list(tables)
        _check_tables(given)
        _check_features(features, {table.name for table in given})
        self.queue = FeatureQueue(FeatureTables(given, features))

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
    def tables(self) -> Mapping[str, TableVerbs]:
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
            found = _LookupFeatures.apply(anchor, dense, _Lookup(queue, ids, missing))  # type: ignore[no-untyped-call]
            assert isinstance(found, torch.Tensor)
            return found
        joined = queue.engine.lookup(ids, missing, dense)[0]
        if dense is None or not (dense.requires_grad and torch.is_grad_enabled()):
            return joined
        return torch.cat([joined[:, : self.width], dense], 1)


class _Lookup(NamedTuple):
    """What `_LookupFeatures` takes beside the anchor."""

    queue: FeatureQueue
    ids: Mapping[str, Ragged]
    missing: str


class _LookupFeatures(torch.autograd.Function):
    """The lookup as torch differentiates it."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, dense: torch.Tensor | None, lookup: _Lookup
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
        return queue_once(_queue_gradients, ctx, gradients)


def _queue_gradients(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    _ = ctx.saved_tensors
    queue: FeatureQueue = ctx.queue
    is_alone = holders_of(gradients) == queue.holders_alone
    dense = gradients[:, queue.engine.width :].clone() if ctx.needs_input_grad[1] else None
    return queue.push(ctx.batch, own(gradients, is_alone)), dense, None


def _check_tables(tables: list[TableVerbs]) -> None:
    """Refuse what cannot be called together."""
    if not tables:
        raise ValueError(f"{_WHERE} expected at least one table, got none")
    for table in tables:
        if not isinstance(table, TableVerbs):
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
