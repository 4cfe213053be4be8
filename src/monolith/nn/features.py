"""`Features`: the tables of all features of a model, read together and trained together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import torch

from monolith.embedding import Table, TableConfig
from monolith.embedding.feature_bags import BagFeature, FeatureBags
from monolith.embedding.verbs import TableVerbs
from monolith.nn.feature import Feature, slice_columns, table_configs
from monolith.ops import Ragged

__all__ = ["Embedded", "Features"]


class Embedded(Mapping[str, torch.Tensor]):
    """The rows of a batch, by feature: (batch, dim), or (batch, max_length, dim) of "first".

    All of them are views of `joined`. Views are made on use, so that a model which takes `joined`
    as they are pays for nothing else.

    Attributes:
        joined: float32 (batch, width), the features side by side.
    """

    def __init__(self, joined: torch.Tensor, owner: "Features") -> None:
        self.joined = joined
        self._owner = owner
        self._views: dict[str, torch.Tensor] | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._views is None:
            self._views = self._owner.views(self.joined)
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._owner.columns)

    def __len__(self) -> int:
        return len(self._owner.columns)

    def slice(self, name: str, part: str) -> torch.Tensor:
        """One slice of a feature's rows, by the name of its `Segment`, or its number."""
        columns = self._owner.slices[name]
        if part not in columns:
            raise KeyError(
                f"[Embedded.slice] expected a slice of feature {name!r} ({', '.join(columns)}), "
                f"got {part!r}"
            )
        return self[name][..., columns[part]]


class _Held(torch.nn.Module):
    def __init__(self, queue: object) -> None:
        super().__init__()
        self.queue = queue


class Features(torch.nn.Module):
    """The tables of features. One lookup reads all features of a batch, one step trains them.

    Backward queues gradients; `monolith.optim.Optimizer(model)` applies them. In training mode a
    missing id reads as the row that it would get, in eval mode as zeros.

    Args:
        features: declared with `Feature`.
        make_table: config -> table; `Table` unless the rows live elsewhere.

    Attributes:
        features: by name.
        columns: feature -> its columns in the output.
        slices: feature -> slice -> its columns in the feature's rows.

    Example:
        >>> features = Features([Feature("user", dim=4), Feature("item", dim=2)])
        >>> ids = {"user": Ragged.from_lists([[7], [8]]), "item": Ragged.from_lists([[1, 2], []])}
        >>> embedded = features(ids)
        >>> embedded.joined.shape, embedded["item"].shape
        (torch.Size([2, 6]), torch.Size([2, 2]))
    """

    def __init__(
        self,
        features: Sequence[Feature],
        *,
        make_table: Callable[[TableConfig], TableVerbs] = Table,
    ) -> None:
        super().__init__()
        if not features:
            raise ValueError("[Features] expected at least one feature, got none")
        configs = {config.name: config for config in table_configs(features)}
        self.features: Mapping[str, Feature] = MappingProxyType({f.name: f for f in features})
        bags = [BagFeature(f.name, f.table, f.combiner, f.max_length) for f in features]
        self._bags = FeatureBags([make_table(config) for config in configs.values()], bags)
        self.queues = torch.nn.ModuleList(_Held(queue) for queue in self._bags.queues)
        self.columns = self._bags.columns
        self.slices = {f.name: slice_columns(configs[f.table]) for f in features}
        self._widths = [columns.stop - columns.start for columns in self.columns.values()]
        self._blocks = {
            f.name: (f.max_length, configs[f.table].dim) for f in features if f.combiner == "first"
        }

    @property
    def tables(self) -> Mapping[str, TableVerbs]:
        """By name."""
        return self._bags.tables

    @property
    def width(self) -> int:
        """Columns of the output."""
        return self._bags.width

    def forward(self, ids: Mapping[str, Ragged]) -> Embedded:
        """Rows of a batch; ids of other names are left alone.

        Args:
            ids: of each feature, a row for each sample.
        """
        return self.read(ids, is_training=self.training)

    def read(self, ids: Mapping[str, Ragged], *, is_training: bool) -> Embedded:
        """`forward` in a mode of the call, whatever the mode of the module: safe beside others."""
        missing = "initial" if is_training else "zeros"
        values = self._bags.lookup(ids, missing=missing, is_trained=is_training)
        return Embedded(values, self)

    def views(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """The columns of each feature in (batch, width), as views."""
        parts = dict(zip(self.columns, values.split_with_sizes(self._widths, 1), strict=True))
        for name, block in self._blocks.items():
            parts[name] = parts[name].unflatten(1, block)
        return parts

    def num_rows(self) -> int:
        """Rows of all tables."""
        return sum(len(table) for table in self.tables.values())

    def close(self) -> None:
        """Free the tables. Closing twice is fine."""
        for table in self.tables.values():
            table.close()

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{len(self.features)} features, {len(self.tables)} tables, width {self.width}"
