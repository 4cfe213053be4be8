"""Turn rows of many features into pooled outputs in one native pass, gradients back in another.

    rows of the lists        cells (feature, example)      outputs
    t1:0  | 10 | 20 |        a  [10 11] [10]               bias = a[0:1] + b[0:1]        ADDN
    t1:1  | 11 | 21 |   ->   b  [20 21] []            ->   vec  = a[1:3] | b[1:3]        CONCAT

The passes themselves: layout_pass.py.
"""

from collections.abc import Mapping, Sequence

import torch

from monolith.native_training.ops.graph_ops import cut_rows
from monolith.native_training.ops.layout_config import FeatureConfigs, OutType
from monolith.native_training.ops.layout_pass import LayoutPass
from monolith.native_training.ops.sharding import BY_SHARD, ShardedFids
from monolith.native_training.ops.tensor_checks import check_tensor, check_threads

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
        >>> from monolith.native_training.ops import *
        >>> from monolith.ops import Ragged
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
    return _pass(sharded, configs, num_threads).run(_as_lists(_WHERE, embeddings, sharded))


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
    return _pass(sharded, configs, num_threads).gradients(gradients, _num_tensors(sharded))


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
    for name, parts in shapes.items():
        taken = [next(left) for _ in parts]
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
        output = layout[name]
        tensors = [output] if isinstance(output, torch.Tensor) else list(output)
        if len(tensors) != len(shapes):
            raise ValueError(
                f"[flatten_layout] expected {len(shapes)} tensors of output {name!r}, got "
                f"{len(tensors)}"
            )
        flat += tensors
    return flat


def _pass(sharded: ShardedFids, configs: FeatureConfigs, num_threads: int | None) -> LayoutPass:
    offsets = (sharded.fid_offset, sharded.feature_offset, sharded.nfl_offset, sharded.cuts)
    in_rows, threads = sharded.version in _IN_ROWS, check_threads(_WHERE, num_threads)
    return LayoutPass(offsets, configs.plan, sharded.batch_size, in_rows, threads)


def _num_tensors(sharded: ShardedFids) -> int:
    """Tensors of rows: one per list, in version 4 one per shard."""
    num_lists = sharded.ps_num * len(sharded.table_names)
    return sharded.ps_num if sharded.version == BY_SHARD else num_lists


def _as_lists(
    where: str, embeddings: Sequence[torch.Tensor], sharded: ShardedFids
) -> list[torch.Tensor]:
    """The tensors of rows, flat; refuses another number of them, or another dtype."""
    tensors = list(embeddings)
    if sharded.version == BY_SHARD and len(tensors) == 1 < sharded.ps_num:
        whole = check_tensor(where, "embeddings", tensors[0], torch.float32)
        sizes = sharded.emb_size.view(sharded.ps_num, -1).sum(1)
        what = f"{where} expected {{}} floats in the rows of all shards"
        tensors = cut_rows(whole.view(-1), sizes, sharded.ps_num, what)
    expected = _num_tensors(sharded)
    if len(tensors) != expected:
        kind = "shard" if sharded.version == BY_SHARD else "table and shard"
        raise ValueError(
            f"{where} expected {expected} tensors of rows, one per {kind}, got {len(tensors)}"
        )
    return [
        check_tensor(where, f"embeddings[{i}]", tensor, torch.float32).view(-1)
        for i, tensor in enumerate(tensors)
    ]
