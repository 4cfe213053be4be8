"""The click model on one `nn.Embedding` for all features, with sparse gradients.

The fastest of three forms: `nn.EmbeddingBag` with an id per bag is 10 % slower, and 26 of them are
half as fast.
"""

import torch
from torch import nn

from benchmarks.click_model import DIM, NUM_FEATURES, ClickWorker, flat_of
from benchmarks.click_torch import TorchClick, adagrad
from benchmarks.worker import serve
from benchmarks.workload import Floats, Int64s


class TorchModel(TorchClick):
    """Row n of the table is that of the flat number n."""

    def make_tables(self) -> None:
        torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
        self._table = nn.Embedding(NUM_FEATURES * self.sizes.rows, DIM, sparse=True)

    def make_optimizer(self) -> None:
        self.optimizer = adagrad(nn.ModuleList([self.net, self._table]))

    def ids(self, ids: Int64s) -> torch.Tensor:
        return torch.from_numpy(flat_of(ids, self.sizes.rows))

    def assign(self, flat: Int64s, values: Floats) -> None:
        self._table.weight.data[torch.from_numpy(flat)] = torch.from_numpy(values)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self._table(ids)
        return rows.flatten(1)


if __name__ == "__main__":
    serve(ClickWorker(TorchModel()))
