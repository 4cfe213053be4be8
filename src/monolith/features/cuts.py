"""Read features from cuts of their tables, while the tables are trained."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from monolith.errors import FailedPreconditionError
from monolith.features.engine import BagFeature, FeatureEngine, Gradients
from monolith.features.plain import PlainEngine
from monolith.table._checks import check_num_keys, default_threads
from monolith.table.bags import Bags
from monolith.table.base import BaseTable
from monolith.table.native import pool_rows
from monolith.table.snapshot import Snapshot

if TYPE_CHECKING:
    from typing_extensions import Self


class CutEngine(PlainEngine):
    """Read features from cuts, to the bits of the tables at the moment of their cuts.

    A table is read with one call for all of its features, and ids without a row read as zeros:
    later updates of the tables do not show. Nothing is trained, so `sum` and `step` refuse. One
    thread may read while any others train the tables.

    Args:
        tables: tables of the features.
        features: features of the tables, with different names.
        snapshots: table -> its open cut; `close` closes the cuts and leaves the tables open.
    """

    def __init__(
        self,
        tables: Iterable[BaseTable],
        features: Sequence[BagFeature],
        snapshots: Mapping[str, Snapshot],
    ) -> None:
        super().__init__(tables, features)
        if list(snapshots) != list(self.tables):
            raise ValueError(
                f"[CutEngine] expected a cut of each of the tables {', '.join(self.tables)}, got "
                f"those of {', '.join(snapshots) or 'none'}"
            )
        self.snapshots = snapshots
        self._is_ended = False

    def _pooled(self, all_bags: list[Bags], missing: str) -> Iterable[torch.Tensor]:
        if missing != "zeros":
            raise ValueError(
                f"[CutEngine.lookup] expected missing 'zeros', got {missing!r}: a cut has no "
                "initial rows; read the features in eval mode"
            )
        by_table: dict[str, list[Bags]] = {}
        for feature, bags in zip(self.features, all_bags, strict=True):
            by_table.setdefault(feature.table, []).append(bags)
        rows = {name: iter(self._rows_of(name, bags)) for name, bags in by_table.items()}
        for feature, bags in zip(self.features, all_bags, strict=True):
            threads = default_threads(bags.num_keys)
            yield pool_rows(bags, next(rows[feature.table]), threads, feature.table).values

    def _rows_of(self, table: str, all_bags: list[Bags]) -> tuple[torch.Tensor, ...]:
        """Return the row of each key of all bags, by one read of a table."""
        sizes = [bags.num_keys for bags in all_bags]
        check_num_keys(self.tables[table].config, "lookup_bags", sum(sizes))
        keys = torch.cat([bags.keys for bags in all_bags])
        return torch.functional.split(self.snapshots[table].lookup(keys), sizes)

    def sum(self, items: Sequence[tuple[Any, Gradients]]) -> NoReturn:
        """Refuse: a cut is not trained."""
        self._refuse("sum")

    def step(self, summed: Any, rates: Sequence[float], times: Sequence[int]) -> NoReturn:
        """Refuse: a cut is not trained."""
        self._refuse("step")

    def _refuse(self, verb: str) -> NoReturn:
        raise FailedPreconditionError(
            f"[CutEngine.{verb}] expected an engine of tables, got one of cuts, which only reads; "
            "train with the engine of the tables"
        )

    def check_open(self, where: str) -> None:
        """Refuse a call after the cuts or a table were closed."""
        if self._is_ended:
            raise FailedPreconditionError(f"{where} expected open cuts, got closed ones")
        super().check_open(where)

    def close(self) -> None:
        """Close the cuts. Closing twice is fine."""
        self._is_ended = True
        with ExitStack() as stack:  # an error of one leaves none of the others open
            for snapshot in self.snapshots.values():
                stack.callback(snapshot.close)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> NoReturn:
        """Refuse: a cut belongs to its table."""
        raise FailedPreconditionError(
            "[CutEngine] expected no copy or pickle, got one: a cut belongs to its table; copy the "
            "engine of the tables"
        )


def cut_tables(engine: FeatureEngine) -> CutEngine:
    """Return an engine of the same features that reads cuts of the tables, taken now.

    The cuts are of one moment if no writer runs meanwhile. Close the engine: until then writers
    keep each row that they change.

    Args:
        engine: engine of the tables, which goes on as before.

    Raises:
        FailedPreconditionError: a table has four open cuts already.

    Example:
        >>> from monolith.features import engine_for
        >>> from monolith.ops import Ragged
        >>> from monolith.table import Segment, Table, TableConfig
        >>> table = Table(TableConfig("user", Segment(1)))
        >>> engine = engine_for([table], [BagFeature("x", "user")])
        >>> table.assign(torch.tensor([7]), torch.tensor([[1.0]]))
        >>> with cut_tables(engine) as cut:
        ...     table.assign(torch.tensor([7]), torch.tensor([[2.0]]))
        ...     cut.lookup({"x": Ragged.from_lists([[7, 8]])}, None, None, "zeros")[0].tolist()
        [[1.0]]
    """
    with ExitStack() as stack:
        snapshots = {n: stack.enter_context(table.cut()) for n, table in engine.tables.items()}
        cut = CutEngine(engine.tables.values(), engine.features, snapshots)
        stack.pop_all()
    return cut
