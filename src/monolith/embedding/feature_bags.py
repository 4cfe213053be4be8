"""All features of a batch over many tables: one lookup, one gradient, one step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from monolith.embedding.autograd import Reading, lookup_bags
from monolith.embedding.gradient_queue import GradientQueue, queue_of
from monolith.embedding.verbs import TableVerbs
from monolith.ops import Ragged

__all__ = ["BagFeature", "FeatureBags"]


@dataclass(frozen=True)
class BagFeature:
    """A feature over a table."""

    name: str
    table: str
    combiner: str = "sum"
    max_length: int = 0


class FeatureBags:
    """Pooled rows of all features of a batch, side by side."""

    def __init__(self, tables: Iterable[TableVerbs], features: Sequence[BagFeature]) -> None:
        self.tables = {table.name: table for table in tables}
        self.features = tuple(features)
        columns, start = {}, 0
        for feature in self.features:
            num = feature.max_length if feature.combiner == "first" else 1
            end = start + num * self.tables[feature.table].dim
            columns[feature.name] = slice(start, end)
            start = end
        self.columns: Mapping[str, slice] = MappingProxyType(columns)
        self.width = start
        self.queues: list[GradientQueue] = [queue_of(t) for t in self.tables.values()]

    def lookup(
        self, ids: Mapping[str, Ragged], *, missing: str = "initial", is_trained: bool = True
    ) -> torch.Tensor:
        """float32 (batch, width)."""
        return torch.cat([self._one(f, ids[f.name], missing, is_trained) for f in self.features], 1)

    def _one(
        self, feature: BagFeature, ids: Ragged, missing: str, is_trained: bool
    ) -> torch.Tensor:
        queue = next(q for q in self.queues if q.table.name == feature.table)
        values, splits = ids.values, ids.row_splits
        if feature.max_length:
            place = torch.arange(len(values)) - splits[:-1].repeat_interleave(ids.lengths)
            values = values[place < feature.max_length]
            lengths = ids.lengths.clamp(max=feature.max_length)
            splits = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        if feature.combiner != "first":
            reading = Reading(feature.combiner, missing, None, is_trained)
            return lookup_bags(queue, queue.anchor, values, splits, None, reading)
        reading = Reading("sum", missing, None, is_trained)
        rows = lookup_bags(queue, queue.anchor, values, len(values), None, reading)
        lengths = splits.diff()
        sample = torch.arange(len(lengths)).repeat_interleave(lengths)
        place = torch.arange(len(values)) - splits[:-1].repeat_interleave(lengths)
        out = rows.new_zeros(len(lengths), feature.max_length, rows.shape[1])
        return out.index_put((sample, place), rows).flatten(1)
