"""The click model in torch, whatever holds its rows; and without rows, the ceiling."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from benchmarks.click_model import WIDTHS, Batch, ClickSystem, ClickWorker, Sizes, layers
from benchmarks.worker import serve
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE, Floats, Int64s


class TorchBatch(NamedTuple):
    """A batch as tensors."""

    dense: torch.Tensor  # (batch, NUM_DENSE)
    ids: torch.Tensor  # as the system wants them
    labels: torch.Tensor  # (batch,)


def make_layers() -> nn.Sequential:
    """The dense layers with their first weights."""
    made: list[nn.Module] = []
    for weight, bias in layers():
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
        made += [linear, nn.ReLU()]
    return nn.Sequential(*made[:-1])


def adagrad(module: nn.Module) -> torch.optim.Optimizer:
    """Adagrad for all parameters."""
    return torch.optim.Adagrad(
        module.parameters(), lr=LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR
    )


def log_loss(module: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Loss of the dense layers."""
    return functional.binary_cross_entropy_with_logits(module(inputs).squeeze(1), labels)


class TorchClick(ClickSystem):
    """What all systems on torch share."""

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def create(self, sizes: Sizes) -> None:
        torch.set_num_threads(sizes.threads)
        torch.manual_seed(0)
        self.sizes = sizes
        self.layers = make_layers()
        self.make_tables()
        self.make_optimizer()

    @abstractmethod
    def make_tables(self) -> None:
        """What holds the rows."""

    def make_optimizer(self) -> None:
        """Of the dense layers."""
        self.optimizer = adagrad(self.layers)

    @abstractmethod
    def ids(self, ids: Int64s) -> torch.Tensor:
        """Ids, (batch, NUM_FEATURES), as the system wants them."""

    @abstractmethod
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of each sample.  # (batch, NUM_FEATURES * DIM)"""

    def insert(self, flat: Int64s) -> None:
        """Fixed tables have all rows."""

    def prepare(self, batch: Batch) -> TorchBatch:
        dense, labels = torch.from_numpy(batch.dense), torch.from_numpy(batch.labels)
        return TorchBatch(dense, self.ids(batch.ids), labels)

    def train(self, prepared: TorchBatch) -> torch.Tensor:
        self.optimizer.zero_grad()
        inputs = torch.cat([prepared.dense, self.embed(prepared.ids)], 1)
        loss = log_loss(self.layers, inputs, prepared.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


class DenseStep:
    """A step of the dense layers alone; their input wants a gradient, as rows would."""

    def __init__(self, batch: int) -> None:
        self._layers = make_layers()
        self._optimizer = adagrad(self._layers)
        generator = torch.Generator().manual_seed(0)
        self._inputs = torch.randn(batch, WIDTHS[0], generator=generator).requires_grad_()

    def __call__(self, labels: torch.Tensor) -> torch.Tensor:
        """One step; the loss before it."""
        self._optimizer.zero_grad()
        self._inputs.grad = None
        loss = log_loss(self._layers, self._inputs, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()


class Dense(ClickSystem):
    """The ceiling: no table at all."""

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def create(self, sizes: Sizes) -> None:
        torch.set_num_threads(sizes.threads)
        self._step = DenseStep(sizes.batch)

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
