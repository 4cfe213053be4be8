"""Hold what `EmbeddingBag` and `Embedding` share: a table, its gradients, state and files."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from monolith.features.autograd import Reading, lookup_bags
from monolith.features.gradients import PendingGradients, pending_of
from monolith.features.plain import TableEngine
from monolith.nn.options import REFUSED_ATTRIBUTES, TableOptions, check_options, make_table
from monolith.nn.queue_module import QueueModule
from monolith.table import Applied, Table, TableConfig
from monolith.table.arguments import as_integer, as_keys
from monolith.table.base import BaseTable
from monolith.table.content import restore_content, table_content
from monolith.table.disk import restore_tables, save_tables
from monolith.table.disk.call_arguments import checked_paths
from monolith.table.disk.plan import plan_tables

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class TableModule(QueueModule):
    """Hold a table. Backward queues gradients; `step` of it or of an optimizer applies.

    In training mode a missing key reads as the row that it would get (`missing`), in eval mode as
    zeros, and nothing is queued. One thread trains a module at a time; lookups may be
    concurrent.

    Attributes:
        queue: gradients of the table, shared by all modules of the table.
        anchor: a parameter of one element that stands for the table (`PendingGradients`).

    Args:
        dim: number of weights of a row.
        positional: none; a second number is what the torch classes call embedding_dim.
        table: a table to share with other modules, in place of one of its own.
        config: of a table of its own, in place of the options.
        missing: what a missing key reads as in training mode, "initial" or "zeros".
        padding_idx: a key that reads as zeros and is not trained.
        options: of a table of its own (`TableOptions`).
    """

    queue: PendingGradients[TableEngine]
    _where = "[TableModule]"  # the start of messages

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._where = f"[{cls.__name__}]"

    def __init__(
        self,
        dim: int,
        *positional: object,
        table: BaseTable | None = None,
        config: TableConfig | None = None,
        missing: str = "initial",
        padding_idx: int | None = None,
        **options: "Unpack[TableOptions]",
    ) -> None:
        super().__init__()
        where = self._where
        if positional:
            raise TypeError(
                f"{where} expected dim alone by position, got {(dim, *positional)}; there is no "
                f"number of embeddings, write {type(self).__name__}({positional[0]})"
            )
        check_options(where, options)
        self.padding_idx = (
            None if padding_idx is None else as_integer(where, "padding_idx", padding_idx)
        )
        if missing not in ("initial", "zeros"):
            raise ValueError(f"{where} expected missing 'initial' or 'zeros', got {missing!r}")
        self.missing = missing
        self._hold(self._make_queue(as_integer(where, "dim", dim), table, config, options))

    def _make_queue(
        self,
        dim: int,
        table: BaseTable | None,
        config: TableConfig | None,
        options: TableOptions,
    ) -> PendingGradients[TableEngine]:
        where = self._where
        chosen = [
            name for name, value in (("table", table), ("config", config)) if value is not None
        ]
        if len([*chosen, *options]) > 1 and chosen:
            raise ValueError(
                f"{where} expected {chosen[0]} alone, got it beside "
                f"{', '.join([*chosen[1:], *options])}"
            )
        if table is not None and not isinstance(table, BaseTable):
            raise TypeError(f"{where} expected table as a Table, got {table!r}")
        chosen_table = table if config is None else Table(config)
        if chosen_table is None:
            is_seed_drawn = not {"name", "seed"} & set(options)
            engine = TableEngine(make_table(dim, options))
            return PendingGradients(engine, is_seed_drawn=is_seed_drawn)
        if chosen_table.dim != dim:
            raise ValueError(
                f"{where} expected dim {chosen_table.dim} of the table, got {dim} (table "
                f"{chosen_table.name!r})"
            )
        return pending_of(chosen_table)

    @property
    def table(self) -> BaseTable:
        """The table; loading a state with another seed into a module replaces it."""
        return self.queue.engine.table

    @property
    def dim(self) -> int:
        """The number of weights of a row."""
        return self.queue.engine.table.dim

    @property
    def embedding_dim(self) -> int:
        """`dim`, as the torch classes call it."""
        return self.dim

    def __getattr__(self, name: str) -> Any:
        if name in REFUSED_ATTRIBUTES:
            raise AttributeError(f"{self._where} has no {name}: {REFUSED_ATTRIBUTES[name]}")
        return super().__getattr__(name)

    def extra_repr(self) -> str:
        """What `print` shows."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.dim}, table={self.table.name!r}{padding}"

    def _lookup(
        self,
        keys: torch.Tensor,
        row_splits: torch.Tensor | int,
        mode: str,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        missing = self.missing if self.training else "zeros"
        reading = Reading(mode, missing, self.padding_idx, self.training)
        anchor = self._parameters["anchor"]  # self.anchor takes a microsecond
        assert anchor is not None
        return lookup_bags(self.queue, anchor, keys, row_splits, weights, reading)

    # Training

    def step(
        self, *, learning_rates: Sequence[float] | None = None, now: int | None = None
    ) -> Applied:
        """Apply what backward has queued: one optimizer step per distinct key. Empties the queue.

        A table that several modules share makes one step for all of them.

        Args:
            learning_rates: one per segment, for this step; each segment's own if None.
            now: time of the update in seconds; the table's clock if None.

        Returns:
            Counts of keys applied, inserted, refused and skipped; zeros if nothing was queued.
        """
        applied = self.queue.apply(learning_rates, now=now)
        assert isinstance(applied, Applied)
        return applied

    def reset_parameters(self) -> None:
        """Forget every row and what is queued."""
        self.queue.drop()
        self.table.clear()

    # State

    def get_extra_state(self) -> dict[str, Any]:
        """Return rows, optimizer state, times, candidates and counters, for `state_dict`."""
        return table_content(self.table)

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take over a state; the queue is dropped. All is checked before anything changes."""
        config = state.get("config") if isinstance(state, Mapping) else None
        seed = config.get("seed") if isinstance(config, Mapping) else None
        table = self._table_with_seed(seed)
        restore_content(table, state)
        self._replace(table)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        if f"{prefix}weight" in state_dict:
            arguments[-1].append(
                f"{prefix}weight is of a torch module; make ours with "
                f"{type(self).__name__}.from_pretrained(weights, keys)"
            )
            return
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def save(self, path: "str | os.PathLike[str]", **options: Any) -> None:
        """Write the table into a folder; for large tables. Options as in `save_tables`."""
        save_tables(self.table, path, **options)

    def load(self, path: "str | os.PathLike[str]", **options: Any) -> None:
        """Read what `save` wrote; the queue is dropped. Options as in `restore_tables`."""
        paths = checked_paths(f"[{type(self).__name__}.load]", path)
        plan = plan_tables(paths, [self.table.name], None).tables.get(self.table.name)
        table = self._table_with_seed(None if plan is None else plan.config.get("seed"))
        restore_tables(table, path, **options)
        self._replace(table)

    def _table_with_seed(self, seed: Any) -> BaseTable:
        """Return the table, or a new one if the seed differs and was drawn at random."""
        table = self.table
        if not self.queue.is_seed_drawn or seed is None or seed == table.config.seed:
            return table
        config = dataclasses.replace(table.config, seed=seed)
        seeded = type(table)(config, clock=table._clock, changes_bytes=table._changes_bytes)
        assert isinstance(seeded, BaseTable)
        return seeded

    def _replace(self, table: BaseTable) -> None:
        self.queue.drop()
        if table is not self.table:
            self.table.close()
            self.queue.replace_engine(TableEngine(table))

    @classmethod
    def from_pretrained(
        cls,
        weights: torch.Tensor,
        keys: torch.Tensor | None = None,
        *,
        freeze: bool = True,
        **options: Any,
    ) -> "Self":
        """Return a module whose table has these rows.

        Args:
            weights: float (num_rows, dim).
            keys: int64 or int32 (num_rows,); 0, 1, 2 and so on if None, as in torch.
            freeze: do not train them.
            options: of the constructor.

        Example:
            >>> from monolith.nn import Embedding
            >>> rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
            >>> Embedding.from_pretrained(rows, torch.tensor([-7, 1 << 40]))(torch.tensor([-7]))
            tensor([[1., 2.]])
        """
        if not isinstance(weights, torch.Tensor) or weights.dim() != 2:
            shape = tuple(weights.shape) if isinstance(weights, torch.Tensor) else weights
            raise ValueError(
                f"[{cls.__name__}.from_pretrained] expected weights as a matrix, got {shape!r}"
            )
        if keys is None:
            keys = torch.arange(len(weights), device="cpu")
        keys = as_keys(f"[{cls.__name__}.from_pretrained]", "keys", keys)
        module = cls(weights.shape[1], **options)
        values = weights.detach().to("cpu", torch.float32).contiguous()
        module.table.reinitialize(keys)  # rows without a question to admission
        module.table.assign(keys, values)
        module.requires_grad_(not freeze)
        return module
