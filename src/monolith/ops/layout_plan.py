"""Features and outputs as numbers that the compiled core reads: native/ops/layout.h."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["LayoutPlan", "OutputPart", "TableOrder", "plan_layout"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OutputPart:
    """One slice of one output; a length of 0 means pooled."""

    output: str
    out_type: str
    feature: int
    start: int
    width: int
    pooling: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class LayoutPlan:
    """What the core needs to know of the configs.

    Attributes:
        dims: int64 (num_features,), widths of rows.
        slices: int64 (num_slices, 10), by feature; columns as in native/ops/layout.h.
        tails: of every output tensor its shape without the batch.
    """

    dims: torch.Tensor
    slices: torch.Tensor
    tails: tuple[tuple[int, ...], ...]


def plan_layout(
    dims: Sequence[int],
    parts: Sequence[OutputPart],
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
) -> LayoutPlan:
    """Number the output tensors and say where each part lies in them.

    Args:
        dims: widths of the rows of the features.
        parts: of all outputs, output by output.
        shapes: of the tensors of each output, -1 for the batch, in the order of the parts.
    """
    tails = tuple(shape[1:] for found in shapes.values() for shape in found)
    first_tensor, begin = {}, 0
    for name, found in shapes.items():
        first_tensor[name] = begin
        begin += len(found)
    rows: list[list[int]] = []
    num_before: dict[str, int] = dict.fromkeys(shapes, 0)
    columns: dict[str, int] = dict.fromkeys(shapes, 0)
    for part in parts:
        at = num_before[part.output]
        tensor = first_tensor[part.output] + (at if part.out_type == "NONE" else 0)
        step, offset = part.width, 0
        if part.out_type == "CONCAT":
            step, offset = tails[tensor][-1], columns[part.output]
        elif part.out_type == "STACK":
            offset = at * part.width * max(1, part.length)
        stride = math.prod(tails[tensor])
        row = [part.feature, part.start, part.width, part.pooling, part.length, tensor, offset]
        rows.append([*row, stride, step, int(part.out_type == "ADDN")])
        num_before[part.output] += 1
        columns[part.output] += part.width
    rows.sort(key=lambda row: row[0])
    written: set[int] = set()
    for row in rows:  # the first slice that reaches a sum writes it, the others add to it
        tensor, is_sum = row[5], row[9]
        row[9] = int(bool(is_sum) and tensor in written)
        written.add(tensor)
    slices = torch.tensor(rows, dtype=torch.int64, device="cpu").view(-1, 10)
    return LayoutPlan(torch.tensor(dims, dtype=torch.int64, device="cpu"), slices, tails)


class TableOrder:
    """The features of each table, in arrays: what sharding needs, computed once per configs.

    Args:
        tables: number of the table of each feature; every table has a feature.
        dims: widths of the rows of the features.

    Attributes:
        features: numbers of the features, table by table.  # (num_features,)
        tables: number of the table of each of them.  # (num_features,)
        dims: width of the rows of each of them.  # (num_features,)
        first: where the features of each table begin among them.  # (num_tables,)
        num_features: of each table.  # (num_tables,)
        positions: of each of them within its table.  # (num_features,)
        by_feature: the arguments; in a graph arrays are tensors, these are numbers.
    """

    def __init__(self, tables: Sequence[int], dims: Sequence[int]) -> None:
        self.by_feature = tuple(tables), tuple(dims)
        numbers = np.array(tables, dtype=np.int64)
        self.features = np.argsort(numbers, kind="stable")
        self.tables = numbers[self.features]
        self.dims = np.array(dims, dtype=np.int64)[self.features]
        self.first, self.num_features = np.unique(
            self.tables, return_index=True, return_counts=True
        )[1:]
        self.positions = np.arange(len(tables)) - self.first[self.tables]

    def before(self, counts: Int64s) -> Int64s:
        """Of each feature in table order, the sum of those before it in its table."""
        sums = np.cumsum(counts, axis=0) - counts  # (num_features, num_shards)
        return sums - sums[self.first][self.tables]

    def totals(self, counts: Int64s) -> Int64s:
        """The sum over the features of each table."""
        sums = np.zeros((len(self.first), counts.shape[1]), dtype=np.int64)
        np.add.at(sums, self.tables, counts)
        return sums
