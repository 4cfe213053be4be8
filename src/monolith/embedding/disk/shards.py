"""Whole tables as the targets of a load, or some shards of them while the others stay."""

from collections.abc import Mapping, Sequence
from typing import Any

from monolith.embedding.disk.plan import TablePlan
from monolith.embedding.verbs import TableVerbs

__all__ = ["Parts"]


class Parts:
    """What of some tables is filled, and from which part of their plans.

    Args:
        tables: by name.
        plans: of the same names.
        shards: numbers of the shards that are filled of each table, which has them; None: each
            table is filled as a whole.

    Attributes:
        pairs: plans and tables that are filled together, by name.
        tables: all that are filled, by what messages call them.
        wholes: tables that these are shards of.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        plans: Mapping[str, TablePlan],
        shards: Sequence[int] | None,
    ) -> None:
        self.pairs: list[tuple[dict[str, TablePlan], dict[str, TableVerbs]]] = []
        self.tables: dict[str, TableVerbs] = {}
        self.wholes = [] if shards is None else list(tables.values())
        self._by_name = dict(tables)
        if shards is None:
            self.pairs.append((dict(plans), dict(tables)))
            self.tables.update(tables)
        for number in shards or ():
            own = {name: table._shard(number) for name, table in tables.items()}
            parts = {n: plan.of_shard(tables[n].routing, number) for n, plan in plans.items()}
            self.pairs.append((parts, own))
            self.tables.update({f"{name} (shard {number})": own[name] for name in own})

    def count_alike(self) -> None:
        """Let shards go on with the call number of the others, as if they had seen all calls.

        Random numbers depend on it, and rows must not depend on which shard they are in.
        """
        for _, own in self.pairs:
            for name, table in own.items():
                table.num_update_calls = self._by_name[name].num_update_calls
