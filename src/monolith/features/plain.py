"""Features of tables that are read and stepped one by one, through their pooled verbs."""

from collections.abc import Mapping, Sequence

import torch

from monolith.features.engine import BagFeature
from monolith.ops import Ragged
from monolith.table._checks import default_threads
from monolith.table.bags import BagGradients, Bags, GradientSum
from monolith.table.base import BaseTable

PlainSum = dict[int, GradientSum]
"""By the number of the table; those without a key are left out."""


def limited_bags(feature: BagFeature, keys: torch.Tensor, row_splits: torch.Tensor) -> Bags:
    """The ids of a feature as bags with memory of their own: what it uses, and how.

    Those of "first" are max_length bags for each sample, of one id or none.

    Example:
        >>> feature = BagFeature("history", "item", "first", 2)
        >>> limited_bags(feature, torch.tensor([7, 8, 9, 5]), torch.tensor([0, 3, 4])).row_splits
        tensor([0, 1, 2, 3, 3])
    """
    keys, mode = keys.long().contiguous(), feature.combiner
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


class PlainEngine:
    """The meaning of features.

    Args:
        tables: all of them.
        features: of some of the tables, table by table.
        columns: of the output, by feature.

    Attributes:
        features: in this order.
    """

    def __init__(
        self,
        tables: list[BaseTable],
        features: Sequence[BagFeature],
        columns: Mapping[str, slice],
    ) -> None:
        self._tables, self.features, self._columns = tables, tuple(features), columns
        numbers = {table.name: number for number, table in enumerate(tables)}
        self._numbers = [numbers[feature.table] for feature in features]

    def lookup(
        self,
        ids: Mapping[str, Ragged],
        out: torch.Tensor,
        initial: bool,
    ) -> list[Bags]:
        """Write the columns of the features into out, (batch, width); their bags."""
        found = []
        for feature, number in zip(self.features, self._numbers, strict=True):
            table, ragged = self._tables[number], ids[feature.name]
            bags = limited_bags(feature, ragged.values, ragged.row_splits)
            threads = default_threads(bags.num_keys)
            pooled = table._lookup_bags(bags, initial, table._update_calls(), threads).values
            own = out[:, self._columns[feature.name]]
            own.copy_(pooled.view(own.shape))
            found.append(bags)
        return found

    def sum(self, items: Sequence[tuple[list[Bags], torch.Tensor]]) -> PlainSum:
        """Of bags and gradients (batch, width) of some lookups, in order."""
        queues: dict[int, list[BagGradients]] = {}
        for all_bags, gradients in items:
            for feature, number, bags in zip(self.features, self._numbers, all_bags, strict=True):
                own = gradients[:, self._columns[feature.name]]
                own = own.reshape(bags.num_bags, self._tables[number].dim).contiguous()
                if bags.num_keys:
                    queues.setdefault(number, []).append(BagGradients(bags, own))
        return {
            number: self._tables[number]._sum_bag_gradients(queue, _threads(queue))
            for number, queue in queues.items()
        }

    def step(self, number: int, sums: PlainSum, rates: list[float], now: int) -> None:
        """One optimizer step of a table."""
        table, summed = self._tables[number], sums[number]
        step, threads = table._update_calls(), _threads(summed.queue)
        table._apply_bag_gradients(summed, rates, step, now, threads)


def _threads(queue: list[BagGradients]) -> int:
    return default_threads(sum([piece.bags.num_keys for piece in queue]))
