# mypy: ignore-errors
"""The click model on 26 fixed tables in one of FBGEMM's table batched embeddings, on the CPU.

Run with the interpreter of build/peers/fbgemm. The optimizer of the tables is in their backward.
"""

import fbgemm_gpu
import numpy as np
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

from benchmarks.click_model import DIM, NUM_FEATURES, ClickWorker
from benchmarks.click_torch import TorchClick
from benchmarks.worker import serve
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE, Floats, Int64s


class FbgemmModel(TorchClick):
    """Ids of a batch lie feature by feature; a bag has one id."""

    def versions(self) -> dict[str, str]:
        return {"fbgemm_gpu": fbgemm_gpu.__version__, **super().versions()}

    def make_tables(self) -> None:
        location = (EmbeddingLocation.HOST, ComputeDevice.CPU)
        self._tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(self.sizes.rows, DIM, *location)] * NUM_FEATURES,
            optimizer=EmbOptimType.EXACT_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=1e-10,
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,
        )
        self._tables.init_embedding_weights_uniform(-0.05, 0.05)
        for (state,) in self._tables.split_optimizer_states():
            state.fill_(INITIAL_ACCUMULATOR)
        self._offsets = torch.arange(NUM_FEATURES * self.sizes.batch + 1)

    def ids(self, ids: Int64s) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(ids.T).reshape(-1))

    def assign(self, flat: Int64s, values: Floats) -> None:
        features, ids = np.divmod(flat, self.sizes.rows)
        for feature, weights in enumerate(self._tables.split_embedding_weights()):
            mine = features == feature
            weights[torch.from_numpy(ids[mine])] = torch.from_numpy(values[mine])

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self._tables(ids, self._offsets)


if __name__ == "__main__":
    serve(ClickWorker(FbgemmModel()))
