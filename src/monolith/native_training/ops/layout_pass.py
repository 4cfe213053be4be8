"""Register the two passes of layouts as ops of torch; layout.py says what they do.

In eager mode a pass is a `torch.autograd.Function`, under torch.compile and torch.export the op
`monolith::embeddings_to_layout`; both do the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd.function import once_differentiable

from monolith.native_training.ops.graph_ops import UNKNOWN, fake_size
from monolith.native_training.ops.tensor_checks import (
    check_tensor,
    default_threads,
    host_empty,
    host_zeros,
)
from monolith.ops.compiled import load_native

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
    """Hold what the core needs to know of the configs.

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
    tails = tuple(shape[1:] for output in shapes.values() for shape in output)
    first_tensor, begin = {}, 0
    for name, output in shapes.items():
        first_tensor[name] = begin
        begin += len(output)
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
        """Sum, for each feature in table order, the values before it in its table."""
        sums = np.cumsum(counts, axis=0) - counts  # (num_features, num_shards)
        return sums - sums[self.first][self.tables]

    def totals(self, counts: Int64s) -> Int64s:
        """The sum over the features of each table."""
        sums = np.zeros((len(self.first), counts.shape[1]), dtype=np.int64)
        np.add.at(sums, self.tables, counts)
        return sums


_WHERE = "[fused_embedding_to_layout]"
_OFFSET_TYPES = (
    ("fid_offset", torch.int64),
    ("feature_offset", torch.int32),
    ("nfl_offset", torch.int64),
    ("cuts", torch.int64),
)
Offsets = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class LayoutPass:
    """One pass with everything but rows and gradients.

    Args:
        offsets: `fid_offset`, `feature_offset`, `nfl_offset`, `cuts` of the sharded ids.
        plan: of the configs.
        batch_size: number of examples.
        in_rows: whether codes count rows.
        threads: 0: those of torch, one if there are few ids.

    Raises:
        TypeError: offsets are of another dtype.
        ValueError: the offsets are of another number of features than the plan, or not on the CPU.
    """

    def __init__(
        self, offsets: Offsets, plan: LayoutPlan, batch_size: int, in_rows: bool, threads: int
    ) -> None:
        self._offsets = tuple(
            check_tensor(_WHERE, name, tensor, dtype)
            for (name, dtype), tensor in zip(_OFFSET_TYPES, offsets, strict=True)
        )
        self._plan, self._batch_size = plan, batch_size
        self._in_rows, self._threads = in_rows, threads
        num_features, num_offsets = plan.dims.shape[0], offsets[2].shape[0]
        if num_offsets != num_features + 1:
            raise ValueError(
                f"{_WHERE} expected nfl_offset of {num_features + 1} entries, got {num_offsets}; "
                "use the configs that the ids were sharded with"
            )

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of the pass."""
        return (*self._offsets, self._plan.dims, self._plan.slices)

    @property
    def _options(self) -> tuple[Any, ...]:
        """Return the arguments of an op that are no tensors."""
        tails = [number for tail in self._plan.tails for number in (len(tail), *tail)]
        return tails, self._batch_size, self._in_rows, self._threads

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs, which backward knows about."""
        if torch.compiler.is_compiling():
            op = torch.ops.monolith.embeddings_to_layout
            return list(op(list(tensors), *self.tensors, *self._options))
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return list(_Layout.apply(self, *tensors))  # type: ignore[no-untyped-call]
        return self.forward(tensors)

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs."""
        tails, float32 = self._plan.tails, torch.float32
        outputs = [host_empty(self._batch_size, *tail, dtype=float32) for tail in tails]
        addresses = [output.data_ptr() for output in outputs]
        lists, sizes = self._lists(tensors)
        plan, offsets, threads = self._arguments()
        load_native().embeddings_to_layout(plan, offsets, lists, sizes, addresses, threads)
        return outputs

    def gradients(
        self, gradients: Sequence[torch.Tensor | None], num_tensors: int
    ) -> list[torch.Tensor]:
        """Gradients of the rows, one flat tensor for each tensor of rows."""
        if torch.compiler.is_compiling():
            op, unknown = torch.ops.monolith.layout_to_gradients, [UNKNOWN] * num_tensors
            return list(op(list(gradients), unknown, *self.tensors, *self._options))
        return self.backward(gradients, self._sizes(num_tensors).tolist())

    def backward(
        self, gradients: Sequence[torch.Tensor | None], sizes: Sequence[int]
    ) -> list[torch.Tensor]:
        """Gradients of the rows, one flat tensor of each size."""
        dense = [None if gradient is None else gradient.contiguous() for gradient in gradients]
        addresses = [0 if gradient is None else gradient.data_ptr() for gradient in dense]
        tensors = [host_zeros(size, dtype=torch.float32) for size in sizes]
        lists, list_sizes = self._lists(tensors)
        plan, offsets, threads = self._arguments()
        load_native().layout_to_gradients(plan, offsets, addresses, lists, list_sizes, threads)
        return tensors

    def _sizes(self, num_tensors: int) -> Int64s:
        """Floats of each tensor of rows, as the cuts tell."""
        numbers, _, sizes = self._offsets[3].numpy().T
        total: Int64s = np.zeros(num_tensors, dtype=np.int64)
        np.add.at(total, numbers, sizes)
        return total

    def _arguments(self) -> tuple[Any, Any, int]:
        """Plan, offsets and threads as the core takes them."""
        *arrays, _ = ((tensor.data_ptr(), len(tensor)) for tensor in self._offsets)
        plan = [(tensor.data_ptr(), len(tensor)) for tensor in (self._plan.dims, self._plan.slices)]
        threads = self._threads or default_threads(len(self._offsets[0]))
        return tuple(plan), (*arrays, self._batch_size, self._in_rows), threads

    def _lists(self, tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[int]]:
        """Address and floats of each index1; refuses tensors of other sizes."""
        numbers, begins, sizes = self._offsets[3].numpy().T
        num_floats = np.array([tensor.numel() for tensor in tensors], dtype=np.int64)
        expected = self._sizes(len(tensors))
        if (num_floats != expected).any():
            at = int((num_floats != expected).argmax())
            raise ValueError(
                f"{_WHERE} expected {expected[at]} floats in embeddings[{at}], got {num_floats[at]}"
            )
        addresses = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
        return (addresses[numbers] + 4 * begins).tolist(), sizes.tolist()


class _Layout(torch.autograd.Function):
    """The eager pass."""

    @staticmethod
    def forward(ctx: Any, call: LayoutPass, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Outputs."""
        ctx.call, ctx.sizes = call, [tensor.numel() for tensor in tensors]
        ctx.set_materialize_grads(False)
        # Saved so that torch notices a change of the offsets.
        ctx.save_for_backward(*call.tensors)
        return tuple(call.forward(tensors))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the rows."""
        _ = ctx.saved_tensors
        if all(gradient is None for gradient in gradients):
            return (None,) * (len(ctx.sizes) + 1)
        return None, *ctx.call.backward(gradients, ctx.sizes)


# The same as ops.

_ARGUMENTS = (
    "Tensor fid_offset, Tensor feature_offset, Tensor nfl_offset, Tensor cuts, Tensor dims, "
    "Tensor slices, int[] tails, SymInt batch_size, bool in_rows, int threads"
)


def _pass_of(
    fid_offset: torch.Tensor,
    feature_offset: torch.Tensor,
    nfl_offset: torch.Tensor,
    cuts: torch.Tensor,
    *arguments: Any,
) -> LayoutPass:
    dims, slices, tails, *options = arguments
    plan = LayoutPlan(dims.contiguous(), slices.contiguous(), tuple(map(tuple, _nested(tails))))
    return LayoutPass((fid_offset, feature_offset, nfl_offset, cuts), plan, *options)


def _nested(flat: Sequence[int]) -> list[list[int]]:
    """Shapes from one list: the number of sizes, then the sizes."""
    tails, at = [], 0
    while at < len(flat):
        tails.append(list(flat[at + 1 : at + 1 + flat[at]]))
        at += 1 + flat[at]
    return tails


@torch.library.custom_op(
    "monolith::embeddings_to_layout",
    mutates_args=(),
    schema=f"(Tensor[] embeddings, {_ARGUMENTS}) -> Tensor[]",
)
def _forward_op(embeddings: Sequence[torch.Tensor], *arguments: Any) -> list[torch.Tensor]:
    return _pass_of(*arguments).forward([tensor.contiguous() for tensor in embeddings])


@_forward_op.register_fake
def _(embeddings: Any, fid_offset: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    tails, batch_size, *_ = arguments[-4:]
    new = fid_offset.new_empty
    return [new((batch_size, *tail), dtype=torch.float32) for tail in _nested(tails)]


@torch.library.custom_op(
    "monolith::layout_to_gradients",
    mutates_args=(),
    schema=f"(Tensor?[] gradients, SymInt[] sizes, {_ARGUMENTS}) -> Tensor[]",
)
def _backward_op(
    gradients: Sequence[torch.Tensor | None], sizes: Sequence[int], *arguments: Any
) -> list[torch.Tensor]:
    return _pass_of(*arguments).gradients(gradients, len(sizes))


@_backward_op.register_fake
def _(gradients: Any, sizes: Sequence[int], fid_offset: torch.Tensor, *_: Any) -> Any:
    return [fid_offset.new_empty(fake_size(size), dtype=torch.float32) for size in sizes]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    embeddings, *tensors = inputs[:7]
    ctx.options = inputs[7:]
    ctx.sizes = [tensor.shape[0] for tensor in embeddings]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradients: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    of_rows = torch.ops.monolith.layout_to_gradients(
        list(gradients), ctx.sizes, *ctx.saved_tensors, *ctx.options
    )
    return of_rows, *(None,) * 10


_forward_op.register_autograd(_backward, setup_context=_save)
