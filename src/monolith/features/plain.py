"""Define what an engine means: each table is read and stepped through its own pooled verbs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.errors import FailedPreconditionError
from monolith.features.engine import (
    BagFeature,
    EngineBase,
    Gradients,
    check_dense,
    check_ids,
    new_matrix,
    refuse_weights,
)
from monolith.ops import Ragged
from monolith.table._checks import check_num_keys, default_threads
from monolith.table.bags import BagGradients, Bags, GradientSum, PooledRows
from monolith.table.base import BaseTable
from monolith.table.config import segments_of
from monolith.table.content import copy_of_content, fill_table
from monolith.table.precision import OneBit
from monolith.table.rows import Applied

if TYPE_CHECKING:
    import monolith._native as _native


def limited_bags(feature: BagFeature, keys: torch.Tensor, row_splits: torch.Tensor) -> Bags:
    """Copy the ids that a feature uses into bags that say how the feature combines them.

    "first" has max_length bags for each sample, of one id or none; "rows" has a bag for each id.

    Example:
        >>> feature = BagFeature("history", "item", "first", 2)
        >>> limited_bags(feature, torch.tensor([7, 8, 9, 5]), torch.tensor([0, 3, 4])).row_splits
        tensor([0, 1, 2, 3, 3])
    """
    keys, mode = keys.long().contiguous(), feature.combiner
    if mode == "rows":
        Bags(keys, row_splits, "sum")  # refuses splits of other ids
        return Bags(keys.clone(), len(keys), "sum")
    if not feature.max_length:
        return Bags(keys.clone(), row_splits.clone(), mode)
    lengths = row_splits.diff()
    places = torch.arange(len(keys), device="cpu") - row_splits[:-1].repeat_interleave(lengths)
    counts = lengths.clamp(max=feature.max_length)
    if mode == "first":
        mode = "sum"
        of_block = torch.arange(feature.max_length, device="cpu")
        counts = (of_block < counts.unsqueeze(1)).long().flatten()
    splits = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return Bags(keys[places < feature.max_length], splits, mode)


class PlainLooked(NamedTuple):
    """Keep the bags of all features, in their order, and the rows of features with "rows"."""

    bags: list[Bags]
    rows: Mapping[str, torch.Tensor]
    num_keys: int


class PlainSum(NamedTuple):
    """Hold the sums of the tables that have keys, by name, in the order of the tables."""

    tables: Mapping[str, GradientSum]

    @property
    def norm(self) -> torch.Tensor:
        """L2 norm over all tables."""
        square = 0.0
        for summed in self.tables.values():
            square += summed.norm * summed.norm
        return torch.tensor(math.sqrt(square), dtype=torch.float64, device="cpu")

    def norm_of(self, table: str) -> float:
        """Return the L2 norm of the gradient of one table; 0 without keys."""
        return self.tables[table].norm if table in self.tables else 0.0


class PlainEngine(EngineBase):
    """Read and step the tables of features one by one. Works with tables of any class.

    Without tables, the matrix is that of the dense columns. The arguments are those of
    `EngineBase`; the methods are those of `FeatureEngine`.
    """

    takes_none = True

    def lookup(
        self,
        ids: Mapping[str, Ragged],
        weights: Mapping[str, torch.Tensor] | None,
        dense: torch.Tensor | None,
        missing: str,
    ) -> tuple[torch.Tensor, PlainLooked]:
        """Read the rows of all features."""
        self.check_open("[Features.lookup]")
        if weights is not None:
            refuse_weights(weights)
        check_ids(self.features, ids)
        if self.features:
            batch = ids[self.features[0].name].num_rows
        else:
            batch = 0 if dense is None else len(dense)
        if dense is not None:
            check_dense(dense, batch)
        matrix = new_matrix(batch, self.width, 0 if dense is None else dense.shape[1])
        all_bags, rows = [], {}
        for feature in self.features:
            table, ragged = self.tables[feature.table], ids[feature.name]
            bags = limited_bags(feature, ragged.values, ragged.row_splits)
            check_num_keys(table.config, "lookup_bags", bags.num_keys)
            all_bags.append(bags)
        for feature, pooled in zip(self.features, self._pooled(all_bags, missing), strict=True):
            if feature.combiner == "rows":
                rows[feature.name] = pooled
            else:
                columns = matrix[:, self.columns[feature.name]]
                columns.copy_(pooled.view(columns.shape))
        if dense is not None:
            matrix[:, self.width :] = dense.detach()
        return matrix, PlainLooked(all_bags, rows, sum([bags.num_keys for bags in all_bags]))

    def _pooled(self, all_bags: list[Bags], missing: str) -> Iterable[torch.Tensor]:
        """Return the rows of the bags of each feature, float32 (num_bags, dim)."""
        for feature, bags in zip(self.features, all_bags, strict=True):
            table = self.tables[feature.table]
            initial, step = missing == "initial" and not table._is_serving, table._update_calls()
            threads = default_threads(bags.num_keys)
            yield table._lookup_bags(bags, initial, step, threads).values

    def sum(self, items: Sequence[tuple[PlainLooked, Gradients]]) -> PlainSum:
        """Add up the gradients of equal keys of each table."""
        self.check_open("[Features.backward]")
        queues: dict[str, list[BagGradients]] = {}
        for looked, gradients in items:
            for feature, bags in zip(self.features, looked.bags, strict=True):
                values = self._gradients_of(feature, gradients)
                if bags.num_keys and values is not None:
                    shape = (bags.num_bags, self.tables[feature.table].dim)
                    piece = BagGradients(bags, values.reshape(shape).contiguous())
                    queues.setdefault(feature.table, []).append(piece)
        sums = {}
        for name, table in self.tables.items():
            if name in queues:
                num_keys = sum([piece.bags.num_keys for piece in queues[name]])
                check_num_keys(table.config, "sum_bag_gradients", num_keys)
                sums[name] = table._sum_bag_gradients(queues[name], default_threads(num_keys))
        return PlainSum(sums)

    def _gradients_of(self, feature: BagFeature, gradients: Gradients) -> torch.Tensor | None:
        if feature.combiner == "rows":
            return gradients.rows.get(feature.name)
        matrix = gradients.matrix
        return None if matrix is None else matrix[:, self.columns[feature.name]]

    def step(self, summed: PlainSum, rates: Sequence[float], times: Sequence[int]) -> Applied:
        """Make one optimizer step for each distinct key."""
        self.check_open("[Features.step]")
        self.check_finite(summed)
        counts, first = [], 0
        for (name, table), now in zip(self.tables.items(), times, strict=True):
            end = first + len(segments_of(table.config))
            if name in summed.tables:
                of_table = summed.tables[name]
                counts.append(_step(table, of_table, list(rates[first:end]), now))
            first = end
        return Applied(*map(sum, zip(*counts, strict=True))) if counts else Applied(0, 0, 0, 0)


def _step(table: BaseTable, summed: GradientSum, rates: list[float], now: int) -> Applied:
    threads = default_threads(sum([piece.bags.num_keys for piece in summed.queue]))
    return table._apply_bag_gradients(summed, rates, table._update_calls(), now, threads)


class TableEngine:
    """Read and step one table in bags of the caller, for `EmbeddingBag` and `Embedding`.

    `sum` and `step` are those of a `FeatureEngine`.

    Args:
        table: any table.
    """

    steps_always = False

    def __init__(self, table: BaseTable) -> None:
        self.table = table
        self.tables: Mapping[str, BaseTable] = {table.name: table}
        # Only a OneBit view reads differently from step to step.
        self._has_steps = any(isinstance(s.view, OneBit) for s in segments_of(table.config))

    def lookup(self, bags: Bags, missing: str) -> PooledRows:
        """Return `Table.lookup_bags` as of the table's step; the module has checked `missing`."""
        table, num_keys = self.table, bags.keys.numel()
        table._check_open("lookup_bags")
        check_num_keys(table.config, "lookup_bags", num_keys)
        initial = missing == "initial" and not table._is_serving
        step = table._update_calls() if self._has_steps else 0
        try:
            return table._lookup_bags(bags, initial, step, default_threads(num_keys))
        except ValueError:
            bags.checked()  # says more than the core about splits
            raise

    def sum(self, items: Sequence[tuple[Bags, BagGradients]]) -> GradientSum:
        """Add up the gradients of equal keys."""
        table = self.table
        table._check_open("sum_bag_gradients")
        queue = [gradients for _, gradients in items]
        num_keys = sum([bags.keys.numel() for bags, _ in items])
        check_num_keys(table.config, "sum_bag_gradients", num_keys)
        return table._sum_bag_gradients(queue, default_threads(num_keys))

    def step(self, summed: GradientSum, rates: Sequence[float], times: Sequence[int]) -> Applied:
        """Make one optimizer step for each distinct key."""
        return _step(self.table, summed, list(rates), times[0])

    def step_core(self) -> "_native.Table | None":
        """Return what makes the table's step in one call with other tables, if there is such."""
        return self.table._step_core()

    def check_open(self, where: str) -> None:
        """Refuse a call after the table was closed."""
        if self.table._is_closed:
            raise FailedPreconditionError(
                f"{where} expected an open table, got a closed one (table {self.table.name!r})"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the rows of the table, for pickle and deepcopy."""
        return {"table": copy_of_content(self.table)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        TableEngine.__init__(self, fill_table(state["table"]))
