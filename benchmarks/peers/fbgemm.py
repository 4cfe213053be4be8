# mypy: ignore-errors
"""FBGEMM's table batched embedding on the CPU: a fixed table with the optimizer in its backward.

Run with the interpreter of build/peers/fbgemm. Settings that were fastest: sum pooling of one id
per bag (pooling mode "none" is 2 to 9 times slower), no check of bounds, evaluation mode for a
lookup.
"""

import fbgemm_gpu
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from benchmarks.worker import System, Worker, serve
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE, Floats, Int64s, Workload


class Fbgemm(System):
    """Lookups use SGD, which has no state: the forward pass is the same and 20 M rows fit."""

    name = "fbgemm"

    def versions(self) -> dict[str, str]:
        return {"fbgemm_gpu": fbgemm_gpu.__version__, "torch": torch.__version__}

    def create(self, workload: Workload, *, with_state: bool, presized: bool) -> None:
        torch.set_num_threads(workload.threads)
        optimizer = EmbOptimType.EXACT_ADAGRAD if with_state else EmbOptimType.EXACT_SGD
        location = (EmbeddingLocation.HOST, ComputeDevice.CPU)
        self._module = SplitTableBatchedEmbeddingBagsCodegen(
            [(workload.rows, workload.dim, *location)],
            optimizer=optimizer,
            learning_rate=LEARNING_RATE,
            eps=0.0,
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,
        )
        self._module.train(with_state)
        self._weights = self._module.split_embedding_weights()[0]
        self._state = self._module.split_optimizer_states()[0][0] if with_state else None
        self._offsets = torch.arange(workload.batch + 1)

    def batch(self, indices: Int64s) -> torch.Tensor:
        return torch.from_numpy(indices)

    def tensor(self, array: Floats) -> torch.Tensor:
        return torch.from_numpy(array)

    def assign(self, batch: torch.Tensor, values: torch.Tensor) -> None:
        self._weights[batch] = values
        if self._state is not None:
            self._state[batch] = INITIAL_ACCUMULATOR

    def lookup(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self._module(batch, self._offsets)

    def update(self, batch: torch.Tensor, gradient: torch.Tensor) -> None:
        self._module(batch, self._offsets).backward(gradient)

    def insert(self, batch: torch.Tensor) -> None:
        raise NotImplementedError("[fbgemm] a fixed table has no insert")

    def num_rows(self) -> int:
        return len(self._weights)

    def close(self) -> None:
        del self._module, self._weights, self._state


if __name__ == "__main__":
    serve(Worker(Fbgemm()))
