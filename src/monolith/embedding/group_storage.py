"""How a group of tables runs its calls, with checked arguments: fused in the core, or in a loop."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch

from monolith.embedding.config import segments_of
from monolith.embedding.native_core import OpenCore, empty
from monolith.embedding.per_segment import PerSegment
from monolith.embedding.reference_batch import finite_gradients
from monolith.embedding.rows import Applied
from monolith.embedding.verbs import TableVerbs
from monolith.embedding.views import OneBit
from monolith.ops import Ragged

__all__ = ["GroupStorage", "group_storage"]


class GroupStorage(ABC):
    """The calls of a `TableGroup`. Rows are flat; rates are those of all segments in order."""

    @abstractmethod
    def lookup(self, keys: Ragged, initial: bool, step: int, threads: int) -> torch.Tensor:
        """`TableGroup.lookup`."""

    @abstractmethod
    def write(self, verb: str, keys: Ragged, values: torch.Tensor, now: int, threads: int) -> None:
        """`TableGroup.assign` or `assign_add`, as the verb says."""

    @abstractmethod
    def apply_gradients(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        """`TableGroup.apply_gradients`."""


def group_storage(tables: list[TableVerbs], dims: torch.Tensor) -> GroupStorage:
    """Fused if all tables are native and none records its calls."""
    cores = [getattr(table, "_core", None) for table in tables]
    if all(core is not None for core in cores) and not any(
        getattr(t, "_is_recorded", False) for t in tables
    ):
        return _Fused(tables, dims)
    return _Loop(tables, dims)


class _Loop(GroupStorage):
    """One table after another: the meaning."""

    def __init__(self, tables: list[TableVerbs], dims: torch.Tensor) -> None:
        self._tables, self._dims = tables, dims

    def lookup(self, keys: Ragged, initial: bool, step: int, threads: int) -> torch.Tensor:
        parts = zip(
            self._tables, torch.split_with_sizes(keys.values, keys.lengths.tolist()), strict=True
        )
        return torch.cat([t._lookup(part, initial, step, threads).flatten() for t, part in parts])

    def _parts(
        self, keys: Ragged, flat: torch.Tensor
    ) -> Iterator[tuple[TableVerbs, torch.Tensor, torch.Tensor]]:
        lengths = keys.lengths
        parts = torch.split_with_sizes(keys.values, lengths.tolist())
        rows = torch.split_with_sizes(flat, (lengths * self._dims).tolist())
        for table, part, row in zip(self._tables, parts, rows, strict=True):
            yield table, part, row.view(-1, table.dim)

    def write(self, verb: str, keys: Ragged, values: torch.Tensor, now: int, threads: int) -> None:
        for table, part, rows in self._parts(keys, values):
            if len(part) and verb == "assign":
                table._assign(part, rows, None, now, threads)
            elif len(part):
                table._assign_add(part, rows, now, threads)

    def apply_gradients(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        for table, part, rows in self._parts(keys, grads):
            if table.config.non_finite == "refuse":
                finite_gradients(table.config, part.tolist(), rows.detach().numpy())
        counts, at = torch.zeros(4, dtype=torch.int64, device="cpu"), 0
        for table, part, rows in self._parts(keys, grads):
            own_rates = rates[at : at + len(segments_of(table.config))]
            at += len(own_rates)
            if len(part):
                own = table._apply_gradients(part, rows, own_rates, step, now, threads)
                counts += torch.tensor(own, device="cpu")
        return Applied(*counts.tolist())


class _Fused(GroupStorage):
    """One call of the core, whose threads share the work of all tables."""

    def __init__(self, tables: list[TableVerbs], dims: torch.Tensor) -> None:
        import monolith._native as native

        self._dims = dims
        self._core = native.TableGroup([table._core for table in tables])  # type: ignore[attr-defined]
        views = [s.view for table in tables for s in segments_of(table.config)]
        scales = {view: view.scale for view in views if isinstance(view, OneBit)}
        self._scales = PerSegment([scales[v] if isinstance(v, OneBit) else 1.0 for v in views])

    def lookup(self, keys: Ragged, initial: bool, step: int, threads: int) -> torch.Tensor:
        with OpenCore(self._core, "lookup", owner="TableGroup") as core:
            out = empty(int((keys.lengths * self._dims).sum()))
            scales = self._scales.at(step)
            core.lookup(*_buffers(keys), out.data_ptr(), initial, scales, threads)
        return out

    def write(self, verb: str, keys: Ragged, values: torch.Tensor, now: int, threads: int) -> None:
        with OpenCore(self._core, verb, owner="TableGroup") as core:
            write = core.assign if verb == "assign" else core.assign_add
            write(*_buffers(keys), values.data_ptr(), now, threads)

    def apply_gradients(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        with OpenCore(self._core, "apply_gradients", owner="TableGroup") as core:
            buffers = (*_buffers(keys), grads.data_ptr())
            scales = self._scales.at(step)
            counts = core.apply_gradients(*buffers, rates, scales, step, now, threads)
        return Applied(*counts)


def _buffers(keys: Ragged) -> tuple[int, int, int]:
    return keys.values.data_ptr(), keys.values.numel(), keys.row_splits.data_ptr()
