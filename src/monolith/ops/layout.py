"""Rows of many features to pooled outputs in one native pass, and their gradients in another.

    rows of the lists        cells (feature, example)      outputs
    t1:0  | 10 | 20 |        a  [10 11] [10]               bias = a[0:1] + b[0:1]        ADDN
    t1:1  | 11 | 21 |   ->   b  [20 21] []            ->   vec  = a[1:3] | b[1:3]        CONCAT

In eager mode it is a `torch.autograd.Function`, under torch.compile and torch.export the op
`monolith::embeddings_to_layout`; both do the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from monolith.ops.layout_config import FeatureConfigs, OutType
from monolith.ops.layout_plan import LayoutPlan
from monolith.ops.native import load_native
from monolith.ops.sharding import ShardedFids
from monolith.ops.tensor_checks import check_tensor, default_threads

__all__ = [
    "flatten_layout",
    "fused_embedding_to_layout",
    "fused_embedding_to_layout_grad",
    "nest_layout",
]

_WHERE = "[fused_embedding_to_layout]"
_IN_ROWS = (1, 2)  # versions whose codes count rows


def fused_embedding_to_layout(
    embeddings: Sequence[torch.Tensor],
    sharded: ShardedFids,
    configs: FeatureConfigs,
    *,
    num_threads: int | None = None,
) -> list[torch.Tensor]:
    """Make all outputs of the configs from the rows of a batch; differentiable in the rows.

    SUM adds the rows of a cell, MEAN divides by their number, FIRSTN keeps the first ones and pads
    with zeros. An empty cell is zeros; an id counts as often as it occurs.

    Args:
        embeddings: float32 rows of the ids, in the order of the ids. Versions 1, 2, 3 and 5: one
            tensor per list, of any shape, in version 1 (rows, dim). Version 4: one tensor per
            shard, or one for all shards.
        sharded: where each row lies.
        configs: those that `sharded` was made with.
        num_threads: None: those of torch, one if there are few ids. The result does not depend
            on it.

    Returns:
        The tensors of the outputs in the order of their names; of NONE one per slice
        (`nest_layout` gives them their names).

    Raises:
        TypeError: a tensor is of another dtype.
        ValueError: the number of tensors, their sizes or the offsets do not fit.

    Example:
        >>> from monolith.ops import *
        >>> slices = [SliceConfig("a", 0, 2), SliceConfig("b", 1, 2)]
        >>> configs = FeatureConfigs(
        ...     {"a": FeatureConfig("t1", (2,)), "b": FeatureConfig("t1", (2,), PoolingType.MEAN)},
        ...     {"vec": OutConfig(slices, OutType.CONCAT)},
        ... )
        >>> ids = {"a": Ragged.from_lists([[10, 11], [10]]), "b": Ragged.from_lists([[20, 22], []])}
        >>> sharded = sharding_sparse_fids(ids, configs, batch_size=2, ps_num=1)
        >>> rows = [ids[:, None] + torch.tensor([0.0, 0.5]) for ids in sharded.fid_list]
        >>> fused_embedding_to_layout(rows, sharded, configs)
        [tensor([[21.0000, 22.0000, 21.5000],
                [10.0000, 10.5000,  0.0000]])]
    """
    tensors = _as_lists(_WHERE, embeddings, sharded)
    plan, in_rows = configs.plan, sharded.version in _IN_ROWS
    if torch.compiler.is_compiling():
        outputs = torch.ops.monolith.embeddings_to_layout(
            tensors,
            *_offsets(sharded),
            plan.dims,
            plan.slices,
            _flat(plan.tails),
            sharded.batch_size,
            in_rows,
        )
        return list(outputs)
    threads = num_threads or default_threads(len(sharded.fid_offset))
    call = _Call(_offsets(sharded), plan, sharded.batch_size, in_rows, threads)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_Layout.apply(call, *tensors))  # type: ignore[no-untyped-call]
    return call.forward(tensors)


def fused_embedding_to_layout_grad(
    gradients: Sequence[torch.Tensor | None],
    sharded: ShardedFids,
    configs: FeatureConfigs,
    *,
    num_threads: int | None = None,
) -> list[torch.Tensor]:
    """Gradients of the rows from gradients of the outputs, without autograd.

    Args:
        gradients: of every output tensor, in the order of `fused_embedding_to_layout`; None where
            there is none.
        sharded: as forward.
        configs: as forward.
        num_threads: as forward.

    Returns:
        One flat float32 tensor per tensor of rows: per list, in version 4 per shard.

    Raises:
        TypeError: a gradient is of another dtype.
        ValueError: a gradient has another shape than its output, or one is missing.
    """
    where, plan = "[fused_embedding_to_layout_grad]", configs.plan
    shapes = [(sharded.batch_size, *tail) for tail in plan.tails]
    if len(gradients) != len(shapes):
        raise ValueError(
            f"{where} expected {len(shapes)} gradients, one per output, got {len(gradients)}"
        )
    for number, (gradient, shape) in enumerate(zip(gradients, shapes, strict=True)):
        if gradient is None:
            continue
        check_tensor(where, f"gradient {number}", gradient, torch.float32)
        if tuple(gradient.shape) != shape:
            raise ValueError(
                f"{where} expected gradient {number} of shape {shape}, got {tuple(gradient.shape)}"
            )
    threads = num_threads or default_threads(len(sharded.fid_offset))
    in_rows = sharded.version in _IN_ROWS
    call = _Call(_offsets(sharded), plan, sharded.batch_size, in_rows, threads)
    return call.backward(gradients, _tensor_sizes(sharded))


def nest_layout(
    tensors: Sequence[torch.Tensor], configs: FeatureConfigs
) -> dict[str, torch.Tensor | list[torch.Tensor]]:
    """Give the tensors of `fused_embedding_to_layout` the names of their outputs.

    An output of type NONE is a list with one tensor per slice, every other one is a tensor.

    Raises:
        ValueError: there are more or fewer tensors than the outputs have.
    """
    shapes = configs.output_shapes
    expected = sum(map(len, shapes.values()))
    if len(tensors) != expected:
        raise ValueError(f"[nest_layout] expected {expected} tensors, got {len(tensors)}")
    left, nested = iter(tensors), {}
    for name, found in shapes.items():
        taken = [next(left) for _ in found]
        is_list = configs.out_configs[name].out_type is OutType.NONE
        nested[name] = taken if is_list else taken[0]
    return nested


def flatten_layout(
    layout: Mapping[str, torch.Tensor | Sequence[torch.Tensor]], configs: FeatureConfigs
) -> list[torch.Tensor]:
    """The opposite of `nest_layout`.

    Raises:
        ValueError: the outputs are not those of the configs, or a list has another length.
    """
    names = list(configs.output_shapes)
    if sorted(layout) != names:
        raise ValueError(f"[flatten_layout] expected outputs {names}, got {sorted(layout)}")
    flat: list[torch.Tensor] = []
    for name, shapes in configs.output_shapes.items():
        found = layout[name]
        tensors = [found] if isinstance(found, torch.Tensor) else list(found)
        if len(tensors) != len(shapes):
            raise ValueError(
                f"[flatten_layout] expected {len(shapes)} tensors of output {name!r}, got "
                f"{len(tensors)}"
            )
        flat += tensors
    return flat


Offsets = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _offsets(sharded: ShardedFids) -> Offsets:
    return sharded.fid_offset, sharded.feature_offset, sharded.nfl_offset, sharded.cuts


def _flat(tails: Sequence[Sequence[int]]) -> list[int]:
    """Shapes as one list: the number of sizes, then the sizes."""
    return [number for tail in tails for number in (len(tail), *tail)]


def _nested(flat: Sequence[int]) -> list[list[int]]:
    tails, at = [], 0
    while at < len(flat):
        tails.append(list(flat[at + 1 : at + 1 + flat[at]]))
        at += 1 + flat[at]
    return tails


def _tensor_sizes(sharded: ShardedFids) -> list[int]:
    """Floats of each tensor of rows."""
    if sharded.version == 4:
        return [int(n) for n in sharded.emb_size.view(sharded.ps_num, -1).sum(1)]
    return [int(n) for n in sharded.emb_size]


def _as_lists(
    where: str, embeddings: Sequence[torch.Tensor], sharded: ShardedFids
) -> list[torch.Tensor]:
    """The tensors of rows, flat; refuses another number of them, or another dtype."""
    tensors = list(embeddings)
    if sharded.version == 4 and len(tensors) == 1 < sharded.ps_num:
        whole = check_tensor(where, "embeddings", tensors[0], torch.float32)
        tensors = list(torch.split(whole.view(-1), _tensor_sizes(sharded)))
    expected = sharded.ps_num * (1 if sharded.version == 4 else len(sharded.table_names))
    if len(tensors) != expected:
        kind = "shard" if sharded.version == 4 else "table and shard"
        raise ValueError(
            f"{where} expected {expected} tensors of rows, one per {kind}, got {len(tensors)}"
        )
    return [
        check_tensor(where, f"embeddings[{i}]", tensor, torch.float32).view(-1)
        for i, tensor in enumerate(tensors)
    ]


class _Call:
    """One pass with everything but rows and gradients.

    Args:
        offsets: `fid_offset`, `feature_offset`, `nfl_offset`, `cuts`.
        plan: of the configs.
        batch_size: number of examples.
        in_rows: whether codes count rows.
        threads: of the pass.
    """

    def __init__(
        self, offsets: Offsets, plan: LayoutPlan, batch_size: int, in_rows: bool, threads: int
    ) -> None:
        self.tensors = (*offsets, plan.dims, plan.slices)
        *arrays, cuts = (tensor.contiguous() for tensor in offsets)
        num_features = len(plan.dims)
        if len(arrays[2]) != num_features + 1:
            raise ValueError(
                f"{_WHERE} expected nfl_offset of {num_features + 1} entries, got "
                f"{len(arrays[2])}; use the configs that the ids were sharded with"
            )
        self._arrays = arrays  # their addresses are in use
        self._cuts = cuts.numpy()
        self._tails, self._batch_size, self._threads = plan.tails, batch_size, threads
        self._plan = (
            (plan.dims.data_ptr(), num_features),
            (plan.slices.data_ptr(), len(plan.slices)),
        )
        places = [(array.data_ptr(), len(array)) for array in arrays]
        self._offsets = (*places, batch_size, in_rows)

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs."""
        lists, sizes = self._lists(tensors)
        outputs = [torch.empty((self._batch_size, *tail)) for tail in self._tails]
        load_native().embeddings_to_layout(
            self._plan,
            self._offsets,
            lists,
            sizes,
            [output.data_ptr() for output in outputs],
            self._threads,
        )
        return outputs

    def backward(
        self, gradients: Sequence[torch.Tensor | None], sizes: Sequence[int]
    ) -> list[torch.Tensor]:
        """Gradients of the rows, one flat tensor of each size."""
        found = [None if gradient is None else gradient.contiguous() for gradient in gradients]
        tensors = [torch.zeros(size) for size in sizes]
        lists, list_sizes = self._lists(tensors)
        load_native().layout_to_gradients(
            self._plan,
            self._offsets,
            [0 if gradient is None else gradient.data_ptr() for gradient in found],
            lists,
            list_sizes,
            self._threads,
        )
        return tensors

    def _lists(self, tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[int]]:
        """Address and floats of each index1; refuses tensors of other sizes."""
        numbers, begins, sizes = self._cuts.T
        found = np.array([tensor.numel() for tensor in tensors], dtype=np.int64)
        expected = np.zeros(len(tensors), dtype=np.int64)
        np.add.at(expected, numbers, sizes)
        if (found != expected).any():
            at = int((found != expected).argmax())
            raise ValueError(
                f"{_WHERE} expected {expected[at]} floats in embeddings[{at}], got {found[at]}"
            )
        addresses = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
        return (addresses[numbers] + 4 * begins).tolist(), sizes.tolist()


class _Layout(torch.autograd.Function):
    """The eager pass."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
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


# The same as ops. Threads are those of torch.

_ARGUMENTS = (
    "Tensor fid_offset, Tensor feature_offset, Tensor nfl_offset, Tensor cuts, Tensor dims, "
    "Tensor slices, int[] tails, SymInt batch_size, bool in_rows"
)


def _call_of(arguments: Sequence[Any]) -> _Call:
    *offsets, dims, slices, tails, batch_size, in_rows = arguments
    plan = LayoutPlan(dims.contiguous(), slices.contiguous(), tuple(map(tuple, _nested(tails))))
    fid_offset, feature_offset, nfl_offset, cuts = offsets
    threads = default_threads(len(fid_offset))
    places = (fid_offset, feature_offset, nfl_offset, cuts)
    return _Call(places, plan, batch_size, in_rows, threads)


@torch.library.custom_op(
    "monolith::embeddings_to_layout",
    mutates_args=(),
    schema=f"(Tensor[] embeddings, {_ARGUMENTS}) -> Tensor[]",
)
def _forward_op(embeddings: Sequence[torch.Tensor], *arguments: Any) -> list[torch.Tensor]:
    return _call_of(arguments).forward([tensor.contiguous() for tensor in embeddings])


@_forward_op.register_fake
def _(embeddings: Any, fid_offset: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    tails, batch_size = arguments[-3], arguments[-2]
    new = fid_offset.new_empty
    return [new((batch_size, *tail), dtype=torch.float32) for tail in _nested(tails)]


@torch.library.custom_op(
    "monolith::layout_to_gradients",
    mutates_args=(),
    schema=f"(Tensor[] gradients, SymInt[] sizes, {_ARGUMENTS}) -> Tensor[]",
)
def _backward_op(
    gradients: Sequence[torch.Tensor], sizes: Sequence[int], *arguments: Any
) -> list[torch.Tensor]:
    return _call_of(arguments).backward(gradients, sizes)


@_backward_op.register_fake
def _(gradients: Any, sizes: Sequence[int], fid_offset: torch.Tensor, *_: Any) -> Any:
    return [fid_offset.new_empty((size,), dtype=torch.float32) for size in sizes]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    embeddings, *tensors, ctx.tails, ctx.batch_size, ctx.in_rows = inputs
    ctx.sizes = [tensor.shape[0] for tensor in embeddings]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradients: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    of_rows = torch.ops.monolith.layout_to_gradients(
        list(gradients), ctx.sizes, *ctx.saved_tensors, ctx.tails, ctx.batch_size, ctx.in_rows
    )
    return of_rows, *(None,) * 9


_forward_op.register_autograd(_backward, setup_context=_save)
