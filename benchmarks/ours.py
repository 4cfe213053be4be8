"""The system that all of this is about: `monolith.table.Table`, through its Python calls."""

import sys

import torch

import monolith
from benchmarks.worker import System, Worker, serve
from benchmarks.workload import (
    INITIAL_ACCUMULATOR,
    LEARNING_RATE,
    Floats,
    Int64s,
    Workload,
    index_ranges,
    keys_of,
    values_of,
)
from monolith.table import Segment, Table, TableConfig, Uniform
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable


def table_config(dim: int, *, with_state: bool, name: str = "bench") -> TableConfig:
    """SGD keeps no state, Adagrad one number per weight."""
    adagrad = Adagrad(LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR)
    optimizer = adagrad if with_state else SGD(LEARNING_RATE)
    return TableConfig(name, [Segment(dim, optimizer, Uniform(-0.05, 0.05))])


def fill(table: Table, workload: Workload) -> None:
    """All rows of a workload, with their initial values."""
    for indices in index_ranges(workload.rows, workload.batch):
        table.lookup_or_insert(torch.from_numpy(keys_of(indices)))


def fill_known(table: Table, workload: Workload) -> torch.Tensor:
    """All rows of a workload with their known values; the same rows as a tensor, by index."""
    weight = torch.empty(workload.rows, workload.dim)
    for indices in index_ranges(workload.rows, workload.batch):
        values = torch.from_numpy(values_of(indices, workload.dim))
        table.assign(torch.from_numpy(keys_of(indices)), values)
        weight[torch.from_numpy(indices)] = values
    return weight


class Monolith(System):
    """Calls use as many threads as torch does."""

    name = "monolith"

    def versions(self) -> dict[str, str]:
        return {"monolith": monolith.__version__, "torch": torch.__version__}

    def create(self, workload: Workload, *, with_state: bool, presized: bool) -> None:
        torch.set_num_threads(workload.threads)
        self._table = Table(table_config(workload.dim, with_state=with_state))

    def batch(self, indices: Int64s) -> torch.Tensor:
        return torch.from_numpy(keys_of(indices))

    def tensor(self, array: Floats) -> torch.Tensor:
        return torch.from_numpy(array)

    def assign(self, batch: torch.Tensor, values: torch.Tensor) -> None:
        self._table.assign(batch, values)

    def reset(self, batch: torch.Tensor, values: torch.Tensor) -> None:
        self._table.reinitialize(batch)  # `assign` keeps the state of a row that exists
        self._table.assign(batch, values)

    def lookup(self, batch: torch.Tensor) -> torch.Tensor:
        return self._table.lookup(batch)

    def update(self, batch: torch.Tensor, gradient: torch.Tensor) -> None:
        self._table.lookup(batch)
        self._table.apply_gradients(batch, gradient)

    def insert(self, batch: torch.Tensor) -> None:
        self._table.lookup_or_insert(batch)

    def num_rows(self) -> int:
        return len(self._table)

    def close(self) -> None:
        self._table.close()


if __name__ == "__main__":
    if issubclass(Table, ReferenceTable):
        sys.exit("error: the native extension is missing, only the slow table is there: make build")
    serve(Worker(Monolith()))
