"""Pack dictionaries of tensors of several dtypes into a buffer for each dtype, and unpack them."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch

from monolith.native_training.ops.packing import (
    KeyedTensors,
    by_name,
    int64_tensor,
    pack_in_order,
    sorted_names,
    unpack_tensors,
)
from monolith.native_training.ops.reshape import Shape
from monolith.ops.ragged import name_of

_Value = TypeVar("_Value")


def get_keyed_shape(keyed_tensors: Mapping[str, torch.Tensor]) -> dict[str, Shape]:
    """The shapes that `unpack_tensors` needs, in sorted order of keys.

    Example:
        >>> get_keyed_shape({"y": torch.ones(2, 3), "x": torch.ones(4)})
        {'x': (4,), 'y': (2, 3)}
    """
    names = sorted_names("[get_keyed_shape]", keyed_tensors)
    return {name: tuple(keyed_tensors[name].shape) for name in names}


def get_typed_keyed_shape(
    list_keyed_tensors: Iterable[Mapping[str, torch.Tensor]],
) -> list[dict[str, Shape]]:
    """`get_keyed_shape` of each dictionary."""
    return [get_keyed_shape(keyed_tensors) for keyed_tensors in list_keyed_tensors]


def split_tensors_with_type(
    keyed_tensors: KeyedTensors,
) -> list[dict[str, torch.Tensor]]:
    """Group tensors by dtype: groups in sorted order of the dtype's name, keys sorted in each.

    Example:
        >>> tensors = {"a": torch.arange(2), "b": torch.ones(1), "c": torch.ones(1)}
        >>> [list(group) for group in split_tensors_with_type(tensors)]
        [['b', 'c'], ['a']]
    """
    where = "[split_tensors_with_type]"
    keyed_tensors = by_name(where, keyed_tensors)
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for name in sorted_names(where, keyed_tensors):
        tensor = keyed_tensors[name]
        groups.setdefault(name_of(tensor.dtype), {})[name] = tensor
    return [groups[dtype] for dtype in sorted(groups)]


def merge_dicts(dicts: Iterable[Mapping[str, _Value]]) -> dict[str, _Value]:
    """One dictionary of all entries.

    Raises:
        ValueError: two dictionaries have the same key.

    Example:
        >>> merge_dicts([{"b": 1}, {"a": 2}])
        {'b': 1, 'a': 2}
    """
    merged: dict[str, _Value] = {}
    for entries in dicts:
        for name, value in entries.items():
            if name in merged:
                raise ValueError(f"[merge_dicts] expected each key once, got {name!r} twice")
            merged[name] = value
    return merged


def pack_typed_keyed_tensors(
    list_keyed_tensors: Iterable[KeyedTensors],
) -> list[torch.Tensor]:
    """`pack_tensors` of each dictionary; last, one tensor of counts; differentiable.

    Args:
        list_keyed_tensors: one dtype in each dictionary, as `split_tensors_with_type` makes them.

    Returns:
        The buffers, and int64: entries of each dictionary, then elements of each tensor.

    Raises:
        ValueError: there is no dictionary, or what `pack_tensors` raises.

    Example:
        >>> pack_typed_keyed_tensors([{"x": torch.tensor([1, 2])}, {"y": torch.tensor([0.5])}])
        [tensor([1, 2]), tensor([0.5000]), tensor([1, 1, 2, 1])]
    """
    where = "[pack_typed_keyed_tensors]"
    packed = [pack_in_order(where, keyed_tensors) for keyed_tensors in list_keyed_tensors]
    if not packed:
        raise ValueError(f"{where} expected at least 1 dictionary, got 0")
    counts = [len(sizes) for _, sizes in packed]
    every_size = [size for _, sizes in packed for size in sizes]
    return [*(buffer for buffer, _ in packed), int64_tensor(counts + every_size)]


def unpack_packed_tensors(
    list_keyed_shape: Iterable[Mapping[str, Shape]], packed_list: Iterable[torch.Tensor]
) -> list[dict[str, torch.Tensor]]:
    """The dictionaries that `pack_typed_keyed_tensors` packed, as views of the buffers.

    Raises:
        ValueError: there are fewer than 2 tensors, or the shapes do not fit them.

    Example:
        >>> packed = pack_typed_keyed_tensors([{"x": torch.tensor([1, 2])}])
        >>> unpack_packed_tensors([{"x": (None,)}], packed)
        [{'x': tensor([1, 2])}]
    """
    where = "[unpack_packed_tensors]"
    list_keyed_shape, packed_list = list(list_keyed_shape), list(packed_list)
    if len(packed_list) < 2:
        raise ValueError("Wrong packed_list length")
    *buffers, counts = packed_list
    if len(buffers) != len(list_keyed_shape):
        raise ValueError(
            f"{where} expected a buffer for each of {len(list_keyed_shape)} dictionaries, "
            f"got {len(buffers)}"
        )
    expected = [len(keyed_shape) for keyed_shape in list_keyed_shape]
    if counts.shape != (len(expected) + sum(expected),):
        raise ValueError(
            f"{where} expected {len(expected) + sum(expected)} counts as the last tensor, "
            f"got shape {tuple(counts.shape)}"
        )
    if not torch.compiler.is_compiling() and counts[: len(expected)].tolist() != expected:
        raise ValueError(
            f"{where} expected dictionaries of {expected} entries, "
            f"got {counts[: len(expected)].tolist()}"
        )
    sizes = counts[len(expected) :].split_with_sizes(expected)
    return [
        unpack_tensors(keyed_shape, (buffer, size))
        for keyed_shape, buffer, size in zip(list_keyed_shape, buffers, sizes, strict=True)
    ]
