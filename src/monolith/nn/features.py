"""Read the tables of all features of a model together, and train them together."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from monolith.errors import InvalidArgumentError
from monolith.features.autograd import lookup_features, row_features
from monolith.features.core import engine_for
from monolith.features.engine import BagFeature, FeatureEngine
from monolith.features.gradients import PendingGradients
from monolith.nn.feature import BIAS, Feature, slice_columns, table_configs
from monolith.nn.queue_module import QueueModule
from monolith.ops import Ragged
from monolith.table import Table, TableConfig
from monolith.table.base import BaseTable
from monolith.table.content import restore_contents, table_content

_STATE_VERSION = 1


class Embedded(Mapping[str, torch.Tensor]):
    """Give the rows of a batch by feature, without the bias.

    (batch, dim); (batch, max_length, dim) with combiner "first", (num_ids, dim) with "rows". All
    but those of "rows" are views of `joined`. Views are made on use, so that a model which takes
    `joined` as it is pays for nothing else. Used by one thread.

    Attributes:
        joined: float32 (batch, width), the features side by side, but for those with "rows"; a bias
            is the first column of its feature, or of each of its rows. Dense columns come last.
        ids: what was looked up.
    """

    def __init__(
        self,
        joined: torch.Tensor,
        rows: Mapping[str, torch.Tensor],
        owner: "Features",
        ids: Mapping[str, Ragged],
    ) -> None:
        self.joined = joined
        self.ids = ids
        self._owner = owner
        self._rows = rows
        self._views: dict[str, torch.Tensor] | None = None

    def whole(self, name: str) -> torch.Tensor:
        """Return the rows of a feature with the bias; the same object each time."""
        if name in self._rows:
            return self._rows[name]
        if self._views is None:
            self._views = self._owner.views(self.joined[:, : self._owner.width])
        return self._views[name]

    @property
    def apart(self) -> Mapping[str, torch.Tensor]:
        """Rows of the features with combiner "rows", which `joined` does not have."""
        return self._rows

    def with_tensors(self, joined: torch.Tensor, apart: Mapping[str, torch.Tensor]) -> "Embedded":
        """Return the same features with other tensors as their rows, such as copies elsewhere."""
        return Embedded(joined, apart, self._owner, self.ids)

    def without_dense(self) -> "Embedded":
        """Return the same rows with `joined` cut to the features: a view, made without a copy."""
        width = self._owner.width
        if self.joined.shape[1] == width:
            return self
        return Embedded(self.joined[:, :width], self._rows, self._owner, self.ids)

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
        """Return one slice of a feature's rows, by the name of its `Segment`, or its number.

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
        """Return the bias of a feature with `bias=True`, combined as its rows are: (batch, 1).

        Raises:
            KeyError: it has none.
        """
        if name not in self._owner.with_bias:
            raise KeyError(
                f"[Embedded.bias] expected a feature with bias=True, got {name!r} without"
            )
        return self.slice(name, BIAS)

    def mask(self, name: str) -> torch.Tensor:
        """Return which rows of "first" are of ids: int32 (batch, max_length), 1 for an id.

        Raises:
            KeyError: the feature has another combiner.
        """
        feature = self._owner.features[name]
        if feature.combiner != "first":
            raise KeyError(
                f"[Embedded.mask] expected a feature with combiner 'first', got {name!r} with "
                f"{feature.combiner!r}"
            )
        lengths = self.ids[name].lengths.to(self.joined.device, non_blocking=True)
        return size_mask(lengths, feature.max_length)


def size_mask(lengths: torch.Tensor, max_length: int) -> torch.Tensor:
    """Return int32 (batch, max_length) with a 1 in the first `length` places of each row.

    Example:
        >>> size_mask(torch.tensor([1, 3, 0]), 2).tolist()
        [[1, 0], [1, 1], [0, 0]]
    """
    places = torch.arange(max_length, device=lengths.device)
    return (places < lengths[:, None]).to(torch.int32)


class _Held(QueueModule):
    """Hold a queue in the tree of modules."""

    def __init__(self, queue: PendingGradients[FeatureEngine]) -> None:
        super().__init__()
        self._hold(queue)


class Features(torch.nn.Module):
    """Hold the tables of features. One lookup reads all features of a batch, one step trains them.

    Backward queues gradients; `monolith.optim.Optimizer(model)` applies them. In training mode a
    missing id reads as the row that it would get (`missing`), in eval mode as zeros.

    Args:
        features: declared with `Feature`; a model without features has none, and reads nothing.
        missing: what a missing id reads as in training mode, "initial" or "zeros".
        make_table: config -> table; `Table` unless the rows live elsewhere.
        make_engine: tables, features -> engine; one in this process unless the engine reaches
            further.

    Attributes:
        pending: gradients between backward and step, and the engine of the tables.
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
        missing: str = "initial",
        make_table: Callable[[TableConfig], BaseTable] = Table,
        make_engine: Callable[[list[BaseTable], list[BagFeature]], FeatureEngine] = engine_for,
    ) -> None:
        super().__init__()
        if missing not in ("initial", "zeros"):
            raise ValueError(f"[Features] expected missing 'initial' or 'zeros', got {missing!r}")
        configs = {config.name: config for config in table_configs(features)}
        bags = [BagFeature(f.name, f.table, f.combiner, f.max_length) for f in features]
        make = make_engine if bags else engine_for
        engine = make([make_table(config) for config in configs.values()], bags)
        for feature in features:
            if feature.restore_names:
                engine.tables[feature.name].restore_names = feature.restore_names
        self.missing = missing
        self.pending = PendingGradients(engine)
        self.queues = torch.nn.ModuleList([_Held(self.pending)])
        self._features = {f.name: f for f in features}
        self._row_names = row_features(engine)
        self.slices = {f.name: slice_columns(configs[f.table]) for f in features}
        owners = {f.name for f in features if f.bias}
        self.with_bias = frozenset(f.name for f in features if f.table in owners)
        self._widths = [columns.stop - columns.start for columns in self.columns.values()]
        self._blocks = {
            f.name: (f.max_length, configs[f.table].dim) for f in features if f.combiner == "first"
        }

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features by name."""
        return MappingProxyType(self._features)

    @property
    def tables(self) -> Mapping[str, BaseTable]:
        """The tables by name."""
        return self.pending.engine.tables

    @property
    def columns(self) -> Mapping[str, slice]:
        """Feature -> its columns in `Embedded.joined`; none with combiner "rows"."""
        return self.pending.engine.columns

    @property
    def width(self) -> int:
        """Columns of `Embedded.joined`, without dense ones."""
        return self.pending.engine.width

    def forward(self, ids: Mapping[str, Ragged], *, dense: torch.Tensor | None = None) -> Embedded:
        """Read the rows of a batch; ids of other names are left alone.

        Args:
            ids: of each feature, a row for each sample.
            dense: float32 (batch, n), what `Embedded.joined` has after the features: as of
                `torch.cat`, but without a copy of the rows and of their gradients.

        Raises:
            ValueError: a feature is missing.
        """
        return self.read(ids, dense=dense, is_training=self.training)

    def read(
        self, ids: Mapping[str, Ragged], *, dense: torch.Tensor | None = None, is_training: bool
    ) -> Embedded:
        """Call `forward` in a mode of the call, whatever the mode of the module. Thread-safe."""
        if not self._features:
            return Embedded(torch.empty(0, 0) if dense is None else dense, {}, self, ids)
        missing = self.missing if is_training else "zeros"
        anchor: torch.Tensor = self.pending.anchor
        if torch.compiler.is_compiling():
            self._check_has(ids)
            held = self.queues[0]
            assert isinstance(held, _Held)
            anchor = held.anchor  # as torch traces it: of the module, not of the queue
        if not is_training:
            anchor = anchor.detach()
        try:
            joined, *rows = lookup_features(self.pending, anchor, ids, dense, missing)
        except ValueError:
            self._check_has(ids)  # only now: of many features it takes a while
            raise
        return Embedded(joined, dict(zip(self._row_names, rows, strict=True)), self, ids)

    def read_from(
        self, engine: FeatureEngine, ids: Mapping[str, Ragged], *, dense: torch.Tensor | None = None
    ) -> Embedded:
        """Read the rows of a batch from another engine of these features, without training.

        Ids without a row read as zeros, as in eval mode. Thread-safe.

        Args:
            engine: Engine of the same features, such as a `CutEngine`.
            ids: Ids of each feature, with a row for each sample.
            dense: float32 (batch, n), as in `forward`.
        """
        if not self._features:
            return Embedded(torch.empty(0, 0) if dense is None else dense, {}, self, ids)
        self._check_has(ids)
        matrix, looked = engine.lookup(ids, None, dense, "zeros")
        return Embedded(matrix, looked.rows, self, ids)

    def _check_has(self, ids: Mapping[str, Ragged]) -> None:
        lacking = [name for name in self._features if name not in ids]
        if lacking:
            raise ValueError(
                f"[Features] expected ids of {', '.join(lacking)}, got those of "
                f"{', '.join(ids) or 'none'}"
            )

    def views(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the columns of each feature in (batch, width) as views, with a bias."""
        parts = dict(zip(self.columns, values.split_with_sizes(self._widths, 1), strict=True))
        for name, block in self._blocks.items():
            parts[name] = parts[name].unflatten(1, block)  # type: ignore[no-untyped-call]
        return parts

    def num_rows(self) -> int:
        """Return the number of rows of all tables."""
        return sum(len(table) for table in self.tables.values())

    def close(self) -> None:
        """Close the engine and its tables. Closing twice is fine."""
        self.pending.engine.close()

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{len(self.features)} features, {len(self.tables)} tables, width {self.width}"

    # State

    def get_extra_state(self) -> dict[str, Any]:
        """Return rows, optimizer state, times, candidates and counters by table."""
        tables = {name: table_content(table) for name, table in self.tables.items()}
        return {"version": _STATE_VERSION, "tables": tables}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take over a state; the queue is dropped. All is checked before any table changes."""
        contents = _contents_of(state, self.tables)
        restore_contents([(table, contents[name]) for name, table in self.tables.items()])
        self.pending.drop()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        # Tables whose features all have combiner "rows" had queues of their own once.
        anchors = [
            key
            for key in state_dict
            if re.fullmatch(r"queues\.[1-9]\d*\.anchor", key.removeprefix(prefix))
        ]
        for key in anchors:
            del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _contents_of(state: Any, tables: Mapping[str, BaseTable]) -> Mapping[str, Any]:
    """Return the contents of a state by table; refuse another version and other tables."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if version != _STATE_VERSION:
        raise InvalidArgumentError(
            f"[load_state_dict] expected a state of Features of version {_STATE_VERSION}, got "
            f"version {version}"
        )
    contents = state.get("tables")
    names = list(contents) if isinstance(contents, Mapping) else []
    if set(names) != set(tables):
        raise InvalidArgumentError(
            f"[load_state_dict] expected the tables {', '.join(names) or 'none'} as in the saved "
            f"state, got {', '.join(tables)}"
        )
    assert isinstance(contents, Mapping)
    return contents
