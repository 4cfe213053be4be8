"""The click models in torch, whatever holds their rows; and without rows, the ceiling."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from benchmarks.click_model import (
    DIM,
    NUM_DENSE,
    NUM_FEATURES,
    Batch,
    ClickSystem,
    ClickWorker,
    Sizes,
    towers,
)
from benchmarks.worker import serve
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE, Floats, Int64s

_ROWS_WIDTH = NUM_FEATURES * DIM


class TorchBatch(NamedTuple):
    """A batch as tensors."""

    dense: torch.Tensor  # (batch, NUM_DENSE)
    ids: Any  # as the system wants them
    labels: torch.Tensor  # (batch,)


def make_tower(layers: list[tuple[Floats, Floats]], *, is_last: bool) -> nn.Sequential:
    """Layers with their first weights; the last layer of a model has no ReLU."""
    made: list[nn.Module] = []
    for weight, bias in layers:
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
        made += [linear, nn.ReLU()]
    return nn.Sequential(*(made[:-1] if is_last else made))


class ClickNet(nn.Module):
    """The dense part of "click": numbers and rows side by side, and layers."""

    def __init__(self) -> None:
        super().__init__()
        (layers,) = towers("click")
        self.layers = make_tower(layers, is_last=True)

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        logits: torch.Tensor = self.layers(inputs).squeeze(1)
        return logits

    @staticmethod
    def leaves(batch: int) -> list[torch.Tensor]:
        """Made-up inputs; their gradient is wanted, as that of rows is."""
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(batch, NUM_DENSE + _ROWS_WIDTH, generator=generator).requires_grad_()]


class DlrmNet(nn.Module):
    """The dense part of "dlrm", as in examples/dlrm.py, which peers cannot import."""

    def __init__(self) -> None:
        super().__init__()
        bottom, top = towers("dlrm")
        self.bottom, self.top = make_tower(bottom, is_last=False), make_tower(top, is_last=True)
        num = NUM_FEATURES + 1
        row, column = torch.tril_indices(num, num, -1)
        self.register_buffer("pairs", row * num + column, persistent=False)

    def forward(self, dense: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        numbers = self.bottom(dense)
        vectors = torch.cat([numbers, rows], 1).view(len(rows), -1, DIM)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        dots = products.index_select(1, self.get_buffer("pairs"))
        logits: torch.Tensor = self.top(torch.cat([numbers, dots], 1)).squeeze(1)
        return logits

    @staticmethod
    def leaves(batch: int) -> list[torch.Tensor]:
        """Made-up numbers and rows; the gradient of rows is wanted."""
        generator = torch.Generator().manual_seed(0)
        dense = torch.randn(batch, NUM_DENSE, generator=generator)
        return [dense, torch.randn(batch, _ROWS_WIDTH, generator=generator).requires_grad_()]


NETS: dict[str, type[ClickNet] | type[DlrmNet]] = {"click": ClickNet, "dlrm": DlrmNet}


def adagrad(module: nn.Module) -> torch.optim.Optimizer:
    """Adagrad for all parameters."""
    return torch.optim.Adagrad(
        module.parameters(), lr=LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR
    )


def log_loss(net: nn.Module, parts: Sequence[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """Loss of the dense part."""
    return functional.binary_cross_entropy_with_logits(net(*parts), labels)


class TorchClick(ClickSystem):
    """What all systems on torch share."""

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def create(self, sizes: Sizes) -> None:
        torch.set_num_threads(sizes.threads)
        torch.manual_seed(0)
        self.sizes = sizes
        self.net = NETS[sizes.model]()
        self.make_tables()
        self.make_optimizer()

    @abstractmethod
    def make_tables(self) -> None:
        """What holds the rows."""

    def make_optimizer(self) -> None:
        """Of the dense part."""
        self.optimizer = adagrad(self.net)

    @abstractmethod
    def ids(self, ids: Int64s) -> Any:
        """Ids, (batch, NUM_FEATURES), as the system wants them."""

    @abstractmethod
    def embed(self, ids: Any) -> torch.Tensor:
        """Rows of each sample.  # (batch, NUM_FEATURES * DIM)"""

    def insert(self, flat: Int64s) -> None:
        """Fixed tables have all rows."""

    def prepare(self, batch: Batch) -> TorchBatch:
        dense, labels = torch.from_numpy(batch.dense), torch.from_numpy(batch.labels)
        return TorchBatch(dense, self.ids(batch.ids), labels)

    def parts(self, prepared: TorchBatch) -> list[torch.Tensor]:
        """What the dense part takes: numbers and rows, side by side or apart."""
        return [prepared.dense, self.embed(prepared.ids)]

    def train(self, prepared: TorchBatch) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = log_loss(self.net, self.parts(prepared), prepared.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


class DenseStep:
    """A step of the dense part alone; its rows are leaves that want a gradient."""

    def __init__(self, sizes: Sizes) -> None:
        self._net = NETS[sizes.model]()
        self._optimizer = adagrad(self._net)
        self._parts = self._net.leaves(sizes.batch)

    def __call__(self, labels: torch.Tensor) -> torch.Tensor:
        """One step; the loss before it."""
        self._optimizer.zero_grad()
        self._parts[-1].grad = None
        loss = log_loss(self._net, self._parts, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()


class Dense(ClickSystem):
    """The ceiling: no table at all."""

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def create(self, sizes: Sizes) -> None:
        torch.set_num_threads(sizes.threads)
        self._step = DenseStep(sizes)

    def insert(self, flat: Int64s) -> None:
        """There are no rows."""

    def assign(self, flat: Int64s, values: Floats) -> None:
        """There are no rows."""

    def prepare(self, batch: Batch) -> torch.Tensor:
        return torch.from_numpy(batch.labels)

    def train(self, prepared: torch.Tensor) -> torch.Tensor:
        return self._step(prepared)


if __name__ == "__main__":
    serve(ClickWorker(Dense()))
