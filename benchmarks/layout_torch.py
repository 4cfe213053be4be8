"""The baseline of the layout stage: torch with one fused op per kind of pooling.

It gets what suits it best: the rows of all features of a kind in one tensor, and indices in the
order of the output, so that no output is transposed or joined afterwards.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

NUM_FEATURES = 100
DIM = 16
IDS_PER_CELL = 3
KINDS = ("sum", "mean", "first")  # feature i is of kind _CYCLE[i % 5]
_CYCLE = ("sum", "mean", "sum", "mean", "first")


def kind_of(feature: int) -> str:
    """How the ids of a cell of a feature are combined."""
    return _CYCLE[feature % len(_CYCLE)]


def features_of(kind: str) -> list[int]:
    """Numbers of the features of a kind, ascending."""
    return [i for i in range(NUM_FEATURES) if kind_of(i) == kind]


@dataclass(frozen=True)
class LayoutWork:
    """Ids of a batch, the row of every id, and a gradient of every output.

    Args:
        ids: int64 (features, batch, ids per cell), below the vocabulary.
        rows: float32 (features, vocabulary, dim).
        gradients: by kind, in the shape of its output.
    """

    ids: torch.Tensor
    rows: torch.Tensor
    gradients: dict[str, torch.Tensor]

    @classmethod
    def make(cls, *, batch: int, vocabulary: int) -> "LayoutWork":
        """Uniform ids, normal rows and gradients."""
        generator = torch.Generator().manual_seed(0)
        shape = (NUM_FEATURES, batch, IDS_PER_CELL)
        ids = torch.randint(vocabulary, shape, generator=generator)
        rows = torch.randn(NUM_FEATURES, vocabulary, DIM, generator=generator)
        gradients = {}
        for kind in KINDS:
            middle = (len(features_of(kind)), *([IDS_PER_CELL] if kind == "first" else []))
            gradients[kind] = torch.randn(batch, *middle, DIM, generator=generator)
        return cls(ids, rows, gradients)


class TorchLayout:
    """`embedding_bag` for sums and means, `index_select` for the first ids of a cell."""

    def __init__(self, work: LayoutWork) -> None:
        self._gradients = work.gradients
        self._rows: dict[str, torch.Tensor] = {}  # by kind: distinct rows, feature by feature
        self._indices: dict[str, torch.Tensor] = {}  # by kind: (batch * features, ids per cell)
        self._places: dict[str, torch.Tensor] = {}  # by kind: feature * vocabulary + id of a row
        vocabulary = work.rows.shape[1]
        for kind in KINDS:
            chosen = torch.tensor(features_of(kind))
            ids = work.ids[chosen] + (chosen * vocabulary)[:, None, None]
            self._places[kind], indices = torch.unique(ids, return_inverse=True)
            rows = work.rows.flatten(0, 1)[self._places[kind]]
            self._rows[kind] = rows.requires_grad_()
            self._indices[kind] = indices.transpose(0, 1).reshape(-1, IDS_PER_CELL).contiguous()

    def step(self) -> dict[str, torch.Tensor]:
        """Forward and backward; the outputs by kind, in the shape of their gradients."""
        outputs = {}
        for kind in KINDS:
            rows, indices = self._rows[kind], self._indices[kind]
            rows.grad = None
            if kind == "first":
                pooled = rows.index_select(0, indices.view(-1))
            else:
                pooled = functional.embedding_bag(indices, rows, mode=kind)
            outputs[kind] = pooled.view(self._gradients[kind].shape)
        torch.autograd.backward(list(outputs.values()), list(self._gradients.values()))
        return outputs

    def gradients(self, work: LayoutWork) -> torch.Tensor:
        """Of the last step, by feature and id, like the rows of the work."""
        found = torch.zeros_like(work.rows)
        for kind in KINDS:
            gradient = self._rows[kind].grad
            assert gradient is not None
            found.view(-1, DIM)[self._places[kind]] = gradient
        return found
