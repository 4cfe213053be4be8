"""The baseline: a fixed table of torch, `nn.EmbeddingBag`, one id per bag."""

import torch
from torch import nn

from benchmarks.worker import System, Worker, serve
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE, Floats, Int64s, Workload


class PlainTorch(System):
    """Update: sparse gradients, torch's Adagrad. Insert: initial values in the next free rows."""

    name = "torch"

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def create(self, workload: Workload, *, with_state: bool, presized: bool) -> None:
        torch.set_num_threads(workload.threads)
        torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
        # Untouched memory: an insert pays for it like the tables that grow.
        weight = torch.empty(workload.rows, workload.dim)
        self._module = nn.EmbeddingBag.from_pretrained(
            weight, freeze=not with_state, mode="sum", sparse=with_state, include_last_offset=True
        )
        self._offsets = torch.arange(workload.batch + 1)
        self._num_rows = 0
        if with_state:
            self._optimizer = torch.optim.Adagrad(
                self._module.parameters(),
                lr=LEARNING_RATE,
                initial_accumulator_value=INITIAL_ACCUMULATOR,
            )

    def batch(self, indices: Int64s) -> torch.Tensor:
        return torch.from_numpy(indices)

    def tensor(self, array: Floats) -> torch.Tensor:
        return torch.from_numpy(array)

    def assign(self, batch: torch.Tensor, values: torch.Tensor) -> None:
        weight = self._module.weight
        weight.data[batch] = values
        if weight.requires_grad:
            self._optimizer.state[weight]["sum"][batch] = INITIAL_ACCUMULATOR

    def lookup(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            output: torch.Tensor = self._module(batch, self._offsets)
        return output

    def update(self, batch: torch.Tensor, gradient: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        self._module(batch, self._offsets).backward(gradient)
        self._optimizer.step()

    def insert(self, batch: torch.Tensor) -> None:
        last = self._num_rows + len(batch)
        self._module.weight.data[self._num_rows : last].uniform_(-0.05, 0.05)
        self._num_rows = last

    def num_rows(self) -> int:
        return self._num_rows

    def close(self) -> None:
        del self._module


if __name__ == "__main__":
    serve(Worker(PlainTorch()))
