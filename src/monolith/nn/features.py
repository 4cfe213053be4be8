"""`Features`: the tables of all features of a model, read together and trained together."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from monolith.errors import InvalidArgumentError
from monolith.features.autograd import FeatureBags, Reading, lookup_bags
from monolith.features.engine import BagFeature, check_dense
from monolith.features.gradients import PendingGradients, queue_of
from monolith.features.graph_ops import lookup_features
from monolith.nn.feature import BIAS, Feature, slice_columns, table_configs
from monolith.nn.queue_module import QueueModule
from monolith.ops import Ragged
from monolith.table import Table, TableConfig
from monolith.table.arguments import as_keys
from monolith.table.base import BaseTable
from monolith.table.content import restore_contents, table_content

_STATE_VERSION = 1


class Embedded(Mapping[str, torch.Tensor]):
    """The rows of a batch, by feature, without the bias.

    (batch, dim); (batch, max_length, dim) with combiner "first", (num_ids, dim) with "rows". All
    but those of "rows" are views of `joined`. Views are made on use, so that a model which takes
    `joined` as it is pays for nothing else. Used by one thread.

    Attributes:
        joined: float32 (batch, width), the features but those of "rows", side by side; a bias is
            the first column of its feature, or of each of its rows. Dense columns come behind all.
        ids: what was looked up.
    """

    def __init__(
        self,
        joined: torch.Tensor,
        owner: "Features",
        ids: Mapping[str, Ragged],
        *,
        is_training: bool,
    ) -> None:
        self.joined = joined
        self.ids = ids
        self._is_training = is_training
        self._owner = owner
        self._views: dict[str, torch.Tensor] | None = None
        self._rows: dict[str, torch.Tensor] = {}

    def whole(self, name: str) -> torch.Tensor:
        """The rows of a feature with all their columns, the bias too; the same object each time."""
        if name in self._owner.columns:
            if self._views is None:
                self._views = self._owner.views(self.joined[:, : self._owner.width])
            return self._views[name]
        if name not in self._rows:
            ids = self.ids[name]
            self._rows[name] = self._owner.rows(name, ids, is_training=self._is_training)
        return self._rows[name]

    def without_dense(self) -> "Embedded":
        """Return the same rows with `joined` cut to the features: a view, made without a copy."""
        width = self._owner.width
        if self.joined.shape[1] == width:
            return self
        features = self.joined[:, :width]
        rows = Embedded(features, self._owner, self.ids, is_training=self._is_training)
        rows._rows = self._rows
        return rows

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._owner.features:
            raise KeyError(
                f"[Embedded] expected a feature ({', '.join(self._owner.features)}), got {name!r}"
            )
        whole = self.whole(name)
        return whole[..., 1:] if name in self._owner.with_bias else whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._owner.features)

    def __len__(self) -> int:
        return len(self._owner.features)

    def slice(self, name: str, part: str) -> torch.Tensor:
        """One slice of a feature's rows, by the name of its `Segment`, or its number.

        Raises:
            KeyError: the feature has no such slice.
        """
        columns = self._owner.slices[name]
        if part not in columns:
            raise KeyError(
                f"[Embedded.slice] expected a slice of feature {name!r} ({', '.join(columns)}), "
                f"got {part!r}"
            )
        return self.whole(name)[..., columns[part]]

    def bias(self, name: str) -> torch.Tensor:
        """The bias of a feature with `bias=True`, combined as its rows are: (batch, 1).

        Raises:
            KeyError: it has none.
        """
        if name not in self._owner.with_bias:
            raise KeyError(
                f"[Embedded.bias] expected a feature with bias=True, got {name!r} without"
            )
        return self.slice(name, BIAS)

    def mask(self, name: str) -> torch.Tensor:
        """Which of the rows of "first" are of ids: int32 (batch, max_length), 1 for an id.

        Raises:
            KeyError: the feature has another combiner.
        """
        feature = self._owner.features[name]
        if feature.combiner != "first":
            raise KeyError(
                f"[Embedded.mask] expected a feature with combiner 'first', got {name!r} with "
                f"{feature.combiner!r}"
            )
        return size_mask(self.ids[name].lengths, feature.max_length)


def size_mask(lengths: torch.Tensor, max_length: int) -> torch.Tensor:
    """int32 (batch, max_length): 1 in the first places of each row, as many as its length.

    Example:
        >>> size_mask(torch.tensor([1, 3, 0]), 2).tolist()
        [[1, 0], [1, 1], [0, 0]]
    """
    places = torch.arange(max_length, device=lengths.device)
    return (places < lengths[:, None]).to(torch.int32)


class _Held(QueueModule):
    """A queue in the tree of modules."""

    def __init__(self, queue: PendingGradients[Any, Any]) -> None:
        super().__init__()
        self._hold(queue)


class Features(torch.nn.Module):
    """The tables of features. One lookup reads all features of a batch, one step trains them.

    Backward queues gradients; `monolith.optim.Optimizer(model)` applies them. In training mode a
    missing id reads as the row that it would get, in eval mode as zeros.

    Args:
        features: declared with `Feature`.
        make_table: config -> table; `Table` unless the rows live elsewhere.

    Attributes:
        features: by name.
        tables: by name.
        columns: feature -> its columns in `Embedded.joined`.
        slices: feature -> slice -> its columns in the feature's rows.
        with_bias: features whose rows have a bias.

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
        make_table: Callable[[TableConfig], BaseTable] = Table,
    ) -> None:
        super().__init__()
        if not features:
            raise ValueError("[Features] expected at least one feature, got none")
        configs = {config.name: config for config in table_configs(features)}
        self.features: Mapping[str, Feature] = MappingProxyType({f.name: f for f in features})
        tables = {name: make_table(config) for name, config in configs.items()}
        self.tables: Mapping[str, BaseTable] = MappingProxyType(tables)
        bags = [
            BagFeature(f.name, f.table, f.combiner, f.max_length)
            for f in features
            if f.combiner != "rows"
        ]
        pooled = {bag.table for bag in bags}
        _check_apart(features, pooled)
        used = [table for name, table in tables.items() if name in pooled]
        self._bags = FeatureBags(used, bags) if bags else None
        self._row_queues = {
            name: queue_of(table) for name, table in tables.items() if name not in pooled
        }
        self.queues = torch.nn.ModuleList(_Held(queue) for queue in self._queues())
        self.columns: Mapping[str, slice] = {} if self._bags is None else self._bags.columns
        self._row_names = [f.name for f in features if f.combiner == "rows"]
        self.slices = {f.name: slice_columns(configs[f.table]) for f in features}
        owners = {f.name for f in features if f.bias}
        self.with_bias = frozenset(f.name for f in features if f.table in owners)
        self._widths = [columns.stop - columns.start for columns in self.columns.values()]
        self._blocks = {
            f.name: (f.max_length, configs[f.table].dim) for f in features if f.combiner == "first"
        }

    @property
    def width(self) -> int:
        """Columns of `Embedded.joined`, without dense ones."""
        return 0 if self._bags is None else self._bags.width

    def forward(self, ids: Mapping[str, Ragged], *, dense: torch.Tensor | None = None) -> Embedded:
        """Rows of a batch; ids of other names are left alone.

        Args:
            ids: of each feature, a row for each sample.
            dense: float32 (batch, n), what `Embedded.joined` has behind the features: as of
                `torch.cat`, but without a copy of the rows and of their gradients.

        Raises:
            ValueError: a feature is missing.
        """
        return self.read(ids, dense=dense, is_training=self.training)

    def read(
        self, ids: Mapping[str, Ragged], *, dense: torch.Tensor | None = None, is_training: bool
    ) -> Embedded:
        """`forward` in a mode of the call, whatever the mode of the module: safe beside others."""
        self._check_has(self._row_names, ids)
        if self._bags is None:
            batch = ids[self._row_names[0]].num_rows
            check_dense(dense, batch)
            joined = torch.empty(batch, 0) if dense is None else dense.clone()
            return Embedded(joined, self, ids, is_training=is_training)
        missing = "initial" if is_training else "zeros"
        if torch.compiler.is_compiling():
            self._check_has(self.columns, ids)
            anchor = self._anchor(0) if is_training else self._anchor(0).detach()
            joined = lookup_features(self._bags.queue, anchor, ids, dense, missing)
            return Embedded(joined, self, ids, is_training=is_training)
        try:
            joined = self._bags.lookup(ids, dense=dense, missing=missing, is_trained=is_training)
        except ValueError:
            self._check_has(self.columns, ids)  # only now: of many features it takes a while
            raise
        return Embedded(joined, self, ids, is_training=is_training)

    @staticmethod
    def _check_has(names: Iterable[str], ids: Mapping[str, Ragged]) -> None:
        lacking = [name for name in names if name not in ids]
        if lacking:
            raise ValueError(
                f"[Features] expected ids of {', '.join(lacking)}, got those of "
                f"{', '.join(ids) or 'none'}"
            )

    def rows(self, name: str, ids: Ragged, *, is_training: bool) -> torch.Tensor:
        """The rows of ids of a feature, one after another, float32 (num_ids, dim)."""
        table = self.features[name].table
        values = as_keys("[Features]", f"ids of {name}", ids.values).contiguous()
        queue = self._row_queues[table]
        reading = Reading("sum", "initial" if is_training else "zeros", None, is_training)
        if torch.compiler.is_compiling():
            place = list(self._row_queues).index(table) + (self._bags is not None)
            each = torch.arange(len(values) + 1, device="cpu")
            anchor = self._anchor(place)
            return lookup_bags(queue, anchor, values, each, None, reading)
        return lookup_bags(queue, queue.anchor, values, len(values), None, reading)

    def _anchor(self, place: int) -> torch.Tensor:
        """The anchor of a queue as torch traces it: of the module, not of the queue."""
        held = self.queues[place]
        assert isinstance(held, _Held)
        return held.anchor

    def views(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """The columns of each feature in (batch, width), as views, with a bias."""
        parts = dict(zip(self.columns, values.split_with_sizes(self._widths, 1), strict=True))
        for name, block in self._blocks.items():
            parts[name] = parts[name].unflatten(1, block)  # type: ignore[no-untyped-call]
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

    # State

    def get_extra_state(self) -> dict[str, Any]:
        """Rows, optimizer state, times, candidates and counters by table, for `state_dict`."""
        tables = {name: table_content(table) for name, table in self.tables.items()}
        return {"version": _STATE_VERSION, "tables": tables}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take over a state; the queues are dropped. All is checked before any table changes."""
        contents = _contents_of(state, self.tables)
        restore_contents([(table, contents[name]) for name, table in self.tables.items()])
        for queue in self._queues():
            queue.drop()

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: tables come with their queues; nothing is queued in a copy."""
        places = {id(table): place for place, table in enumerate(self._queued_tables())}
        tables = {name: places[id(table)] for name, table in self.tables.items()}
        views = {"features": dict(self.features), "columns": dict(self.columns), "tables": tables}
        return {**self.__dict__, **views}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        tables = self._queued_tables()
        named = {name: tables[place] for name, place in state["tables"].items()}
        self.features = MappingProxyType(state["features"])
        self.columns = MappingProxyType(state["columns"])
        self.tables = MappingProxyType(named)

    def _queues(self) -> list[PendingGradients[Any, Any]]:
        queues: list[PendingGradients[Any, Any]] = [] if self._bags is None else [self._bags.queue]
        return [*queues, *self._row_queues.values()]

    def _queued_tables(self) -> list[BaseTable]:
        return [table for queue in self._queues() for table in queue.tables]


def _check_apart(features: Sequence[Feature], pooled: set[str]) -> None:
    """Refuse a table with rows kept apart and pooled ones: a step would be two."""
    for feature in features:
        if feature.combiner == "rows" and feature.table in pooled:
            raise ValueError(
                f"[Features] expected every feature of table {feature.table!r} with combiner "
                f"'rows', or none, got {feature.name!r} with it beside others without; use 'first'"
            )


def _contents_of(state: Any, tables: Mapping[str, BaseTable]) -> Mapping[str, Any]:
    """The contents of a state by table; refuse a state of another version or of other tables."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if version != _STATE_VERSION:
        raise InvalidArgumentError(
            f"[load_state_dict] expected a state of Features of version {_STATE_VERSION}, got "
            f"version {version}"
        )
    contents = state.get("tables")
    found = list(contents) if isinstance(contents, Mapping) else []
    if set(found) != set(tables):
        raise InvalidArgumentError(
            f"[load_state_dict] expected the tables {', '.join(found) or 'none'} as in the saved "
            f"state, got {', '.join(tables)}"
        )
    assert isinstance(contents, Mapping)
    return contents
