"""The click model on our modules: `Features`, 26 `EmbeddingBag`, or one `Embedding` for all.

python -m benchmarks.click_ours monolith | monolith_bags | monolith_one     answers commands
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import monolith
from benchmarks.click_model import (
    DIM,
    NUM_DENSE,
    NUM_FEATURES,
    ClickWorker,
    flat_of,
    keys_of,
)
from benchmarks.click_torch import DenseStep, TorchBatch, TorchClick, adagrad
from benchmarks.step_split import BAG_CALLS, StepSplit
from benchmarks.worker import serve
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE, Floats, Int64s
from monolith.features import gradients
from monolith.nn import Embedding, EmbeddingBag, Feature, Features
from monolith.ops import Ragged
from monolith.optim import Optimizer
from monolith.table.base import BaseTable
from monolith.table.optimizers import Adagrad


def _adagrad() -> Adagrad:
    return Adagrad(LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR)


class OurClick(TorchClick):
    """What all forms share: one optimizer for layers and tables."""

    modules: list[Any]  # that hold tables

    def versions(self) -> dict[str, str]:
        return {"monolith": monolith.__version__, **super().versions()}

    def make_optimizer(self) -> None:
        model = nn.ModuleList([self.net, *self.modules])
        self.optimizer = Optimizer(model, dense=adagrad(model))

    def tables(self) -> list[BaseTable]:
        """Tables of the model."""
        return [module.table for module in self.modules]

    def calls(self) -> list[tuple[Any, str]]:
        """What does the sparse work of a step: objects, and names of their methods."""
        return [(table, name) for table in self.tables() for name in BAG_CALLS]


class OneTable(OurClick):
    """Keys carry their feature, so all features share a table, and a step is one lookup."""

    def make_tables(self) -> None:
        self.modules = [Embedding(DIM, optimizer=_adagrad(), name="features")]

    def ids(self, ids: Int64s) -> torch.Tensor:
        return torch.from_numpy(keys_of(flat_of(ids, self.sizes.rows), self.sizes.rows))

    def insert(self, flat: Int64s) -> None:
        self.modules[0].table.lookup_or_insert(torch.from_numpy(keys_of(flat, self.sizes.rows)))

    def assign(self, flat: Int64s, values: Floats) -> None:
        keys = torch.from_numpy(keys_of(flat, self.sizes.rows))
        self.modules[0].table.assign(keys, torch.from_numpy(values))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.modules[0](ids)
        return rows.flatten(1)


class TableEach(OurClick):
    """A table for each feature."""

    def insert(self, flat: Int64s) -> None:
        for table, ids, _ in self._by_feature(torch.from_numpy(flat)):
            table.lookup_or_insert(ids)

    def assign(self, flat: Int64s, values: Floats) -> None:
        for table, ids, mine in self._by_feature(torch.from_numpy(flat)):
            table.assign(ids, torch.from_numpy(values)[mine])

    def _by_feature(self, flat: torch.Tensor) -> list[tuple[BaseTable, torch.Tensor, torch.Tensor]]:
        """Tables of the features that have some of the numbers, their ids, and where they are."""
        tables, features, ids = self.tables(), flat // self.sizes.rows, flat % self.sizes.rows
        masks = [(int(number), features == number) for number in torch.unique(features)]
        return [(tables[number], ids[mine], mine) for number, mine in masks]


class ManyBags(TableEach):
    """As in a model that was written for `nn.EmbeddingBag`."""

    def make_tables(self) -> None:
        self.modules = [
            EmbeddingBag(DIM, mode="sum", optimizer=_adagrad(), name=f"feature_{number}")
            for number in range(NUM_FEATURES)
        ]

    def ids(self, ids: Int64s) -> torch.Tensor:
        return torch.from_numpy(ids.T.copy()).unsqueeze(2)  # (NUM_FEATURES, batch, 1)

    def calls(self) -> list[tuple[Any, str]]:
        return [*super().calls(), (gradients, "_step_together")]

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([bag(column) for bag, column in zip(self.modules, ids, strict=True)], 1)


class AllFeatures(TableEach):
    """`Features`: one lookup reads the rows of all tables, one step trains them."""

    def make_tables(self) -> None:
        names = [f"feature_{number}" for number in range(NUM_FEATURES)]
        self.modules = [Features([Feature(name, dim=DIM, optimizer=_adagrad()) for name in names])]

    def tables(self) -> list[BaseTable]:
        return list(self.modules[0].tables.values())

    def calls(self) -> list[tuple[Any, str]]:
        return [(self.modules[0].pending.engine, name) for name in ("lookup", "sum", "step")]

    def ids(self, ids: Int64s) -> dict[str, Ragged]:
        columns, splits = torch.from_numpy(ids.T.copy()), torch.arange(len(ids) + 1)
        names = self.modules[0].features
        return {name: Ragged(column, splits) for name, column in zip(names, columns, strict=True)}

    def embed(self, ids: dict[str, Ragged]) -> torch.Tensor:
        joined: torch.Tensor = self.modules[0](ids).joined
        return joined

    def make_optimizer(self) -> None:
        # Numbers come behind rows here: the first layer takes them in this order.
        if self.sizes.model == "click":
            weight = next(self.net.parameters())
            weight.data = weight.data.roll(-NUM_DENSE, 1)
        super().make_optimizer()

    def parts(self, prepared: TorchBatch) -> list[torch.Tensor]:
        if self.sizes.model != "click":
            return super().parts(prepared)
        return [self.modules[0](prepared.ids, dense=prepared.dense).joined]


class OurWorker(ClickWorker):
    """Can tell what a step is made of."""

    def __init__(self, system: OurClick) -> None:
        super().__init__(system)
        self._model = system

    def split(self, num_steps: int) -> dict[str, Any]:
        """Milliseconds of a step by what they are spent on (`StepSplit`)."""
        dense_step, labels = DenseStep(self._sizes), self._batches[0].labels

        def run_dense(num_dense: int) -> None:
            for _ in range(num_dense):
                dense_step(labels)

        split = StepSplit(self._run, run_dense, self._model.calls())
        return split.measure(num_steps)


SYSTEMS: dict[str, Callable[[], OurClick]] = {
    "monolith": AllFeatures,
    "monolith_bags": ManyBags,
    "monolith_one": OneTable,
}

if __name__ == "__main__":
    serve(OurWorker(SYSTEMS[sys.argv[1]]()))
