"""Pack dictionaries of tensors into few buffers, and unpack them."""

import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from monolith.native_training.ops.reshape import Shape, resolve_shape
from monolith.ops.compiled import load_native
from monolith.ops.ragged import name_of

KeyedTensors = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
"""Tensors by name: a dictionary, or pairs, which may come from `zip` or a generator."""

Packed = tuple[torch.Tensor, torch.Tensor]
"""All elements, and the number of elements of each tensor as int64."""

# What the native copy takes; it copies bytes, which say nothing of a conjugate or of a scale.
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_PLAIN_DTYPES = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    }
)
_MAX_NATIVE_BYTES = 8 << 20  # torch copies with all threads, which pays for larger tensors


def pack_tensors(keyed_tensors: KeyedTensors) -> Packed:
    """Copy all elements to one buffer, tensor after tensor in sorted order of keys.

    Differentiable. `unpack_tensors` undoes it.

    Args:
        keyed_tensors: tensors by name, of one dtype, on one device; at least one.

    Returns:
        The buffer, (num_elements,), and the number of elements of each tensor, int64 on the host.

    Raises:
        TypeError: a key is no string, a value is no tensor, or dtypes differ.
        ValueError: there is no tensor, one is not dense, or devices differ.

    Example:
        >>> pack_tensors({"y": torch.tensor([[4, 5], [6, 7]]), "x": torch.tensor([1, 2])})
        (tensor([1, 2, 4, 5, 6, 7]), tensor([2, 4]))
    """
    packed, sizes = pack_in_order("[pack_tensors]", keyed_tensors)
    return packed, int64_tensor(sizes)


def pack_in_order(where: str, keyed_tensors: KeyedTensors) -> tuple[torch.Tensor, list[int]]:
    """Pack as `pack_tensors` does; return the sizes as a list."""
    keyed_tensors = by_name(where, keyed_tensors)
    names = sorted_names(where, keyed_tensors)
    tensors = list(map(keyed_tensors.__getitem__, names))
    if not (torch.compiler.is_compiling() or _is_watched()):
        copied = _copied(tensors)
        if copied is not None:
            return copied
    check_alike(where, names, tensors)
    flat = [tensor.reshape(-1) for tensor in tensors]
    return torch.cat(flat), [piece.shape[0] for piece in flat]


def unpack_tensors(keyed_shape: Mapping[str, Shape], packed: Packed) -> dict[str, torch.Tensor]:
    """Views of the buffer of `pack_tensors`, in sorted order of keys; differentiable.

    Under `torch.compile` known shapes are taken at their word; where more than one tensor has an
    unknown dimension, the graph needs `torch._dynamo.config.capture_scalar_outputs`.

    Args:
        keyed_shape: shapes, of `get_keyed_shape` or your own; one dimension of each may be `None`.
        packed: what `pack_tensors` returned.

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: the shapes do not fit the sizes, or the sizes not the buffer.

    Example:
        >>> packed = pack_tensors({"x": torch.tensor([1, 2]), "y": torch.tensor([[4, 5], [6, 7]])})
        >>> unpack_tensors({"x": (2,), "y": (None, 2)}, packed)
        {'x': tensor([1, 2]), 'y': tensor([[4, 5],
                [6, 7]])}
    """
    where = "[unpack_tensors]"
    buffer, sizes = packed
    names = sorted_names(where, keyed_shape)
    _check_packed(where, len(names), buffer, sizes)
    if torch.compiler.is_compiling():
        fit, counts = _traced_shape, _traced_counts([keyed_shape[n] for n in names], buffer, sizes)
    else:
        fit, counts = resolve_shape, sizes.tolist()
    if sum(counts) != buffer.shape[0]:
        raise ValueError(
            f"{where} expected sizes that add up to {buffer.shape[0]}, the elements of the buffer, "
            f"got {sum(counts)}"
        )
    shapes = []
    for name, count in zip(names, counts, strict=True):
        shape = fit(keyed_shape[name], count)
        if shape is None:
            raise ValueError(
                f"{where} expected a shape for the {count} elements of {name!r}, "
                f"got {tuple(keyed_shape[name])}; one dimension may be None"
            )
        shapes.append(shape)
    return dict(zip(names, _views(buffer, counts, shapes), strict=True))


def by_name(where: str, keyed_tensors: KeyedTensors) -> Mapping[str, torch.Tensor]:
    """Return the pairs of a list or an iterator as a dictionary; anything else as it is.

    Raises:
        ValueError: two pairs have one name.
    """
    if not isinstance(keyed_tensors, list | tuple | Iterator):
        return keyed_tensors  # type: ignore[return-value]  # `sorted_names` checks it
    keyed: dict[str, torch.Tensor] = {}
    for number, pair in enumerate(keyed_tensors):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"{where} expected a dictionary, or pairs of a name and a tensor, got "
                f"{type(pair).__name__} as pair {number}"
            )
        name, tensor = pair
        if name in keyed:
            raise ValueError(f"{where} expected each name once, got {name!r} twice")
        keyed[name] = tensor
    return keyed


def sorted_names(where: str, keyed: Mapping[str, object]) -> list[str]:
    """The keys in order; refuses what has no names, or none at all."""
    if not isinstance(keyed, Mapping):
        raise TypeError(f"{where} expected a dictionary, got {type(keyed).__name__}")
    if not keyed:
        raise ValueError(f"{where} expected at least 1 entry, got 0")
    wrong = [name for name in keyed if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"{where} expected keys of type str, got {type(wrong[0]).__name__}")
    return sorted(keyed)


def int64_tensor(numbers: list[int]) -> torch.Tensor:
    """A tensor on the host."""
    if torch.compiler.is_compiling() or _is_watched():
        return torch.tensor(numbers, dtype=torch.int64, device="cpu")
    return torch.from_numpy(np.array(numbers, dtype=np.int64))  # 4 times as fast


def _is_watched() -> bool:
    """Whether torch traces, wraps or replaces what happens to tensors."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.autograd.forward_ad._current_level >= 0
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    )


def _copied(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, list[int]] | None:
    """Packed by the core, with the sizes; None where it takes more than a copy of bytes."""
    if not isinstance(tensors[0], torch.Tensor):
        return None
    native, with_grad = load_native(), not torch.is_grad_enabled()
    addresses, num_bytes = native.plain_buffers(tensors, _PLAIN_TYPES, torch.strided, with_grad)
    dtype, total = tensors[0].dtype, sum(num_bytes)
    if not addresses or dtype not in _PLAIN_DTYPES or total > _MAX_NATIVE_BYTES:
        return None
    width = dtype.itemsize
    sizes = [number // width for number in num_bytes]
    packed = torch.empty(total // width, dtype=dtype, device="cpu")
    native.pack_buffers(addresses, num_bytes, packed.data_ptr())
    return packed, sizes


def check_alike(where: str, names: list[str], tensors: list[torch.Tensor]) -> None:
    """Refuse what torch would convert, move or fail on without naming it."""
    first = tensors[0]
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{where} expected {name!r} as a tensor, got {type(tensor).__name__}")
        if tensor.layout != torch.strided or tensor.is_nested:
            layout = "nested" if tensor.is_nested else name_of(tensor.layout)
            raise ValueError(f"{where} expected {name!r} as a dense tensor, got layout {layout}")
        if tensor.dtype != first.dtype:
            raise TypeError(
                f"{where} expected tensors of dtype {name_of(first.dtype)}, that of {names[0]!r}, "
                f"got {name_of(tensor.dtype)} of {name!r}; group them with split_tensors_with_type"
            )
        if tensor.device != first.device:
            raise ValueError(
                f"{where} expected tensors on device {first.device}, that of {names[0]!r}, "
                f"got {tensor.device} of {name!r}; move with .to({str(first.device)!r})"
            )


def _check_packed(where: str, num_shapes: int, buffer: torch.Tensor, sizes: torch.Tensor) -> None:
    for name, tensor in (("the buffer", buffer), ("sizes", sizes)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{where} expected {name} as a tensor, got {type(tensor).__name__}")
        if tensor.dim() != 1:
            raise ValueError(
                f"{where} expected {name} with 1 dimension, got shape {tuple(tensor.shape)}"
            )
    if sizes.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"{where} expected sizes of dtype int64 or int32, got {name_of(sizes.dtype)}"
        )
    if sizes.shape[0] != num_shapes:
        raise ValueError(
            f"{where} expected a size for each of {num_shapes} shapes, got {sizes.shape[0]} sizes"
        )


def _traced_counts(shapes: list[Shape], buffer: torch.Tensor, sizes: torch.Tensor) -> list[int]:
    """Elements of each tensor as the shapes tell; the contents of `sizes` where they do not."""
    counts = [None if None in shape else _product(shape) for shape in shapes]
    unknown = [i for i, count in enumerate(counts) if count is None]
    for i in unknown[:-1]:
        count = sizes[i].item()
        torch._check(count >= 0)  # type: ignore[no-untyped-call]
        counts[i] = int(count)
    if unknown:
        known = sum([count for count in counts if count is not None])
        counts[unknown[-1]] = buffer.shape[0] - known
    return [count for count in counts if count is not None]


def _traced_shape(shape: Shape, numel: int) -> tuple[int, ...] | None:
    """A count read from a tensor cannot be divided while torch traces; the view divides it."""
    if sum([dim is None for dim in shape]) == 1:
        return tuple([-1 if dim is None else dim for dim in shape])
    return resolve_shape(shape, numel)


def _product(shape: Shape) -> int:
    product = 1
    for dim in shape:
        product *= 1 if dim is None else dim
    return product


def _views(
    buffer: torch.Tensor, counts: list[int], shapes: list[tuple[int, ...]]
) -> list[torch.Tensor]:
    is_traced = torch.compiler.is_compiling() or (torch.is_grad_enabled() and buffer.requires_grad)
    if is_traced or buffer.layout != torch.strided:
        pieces = buffer.split_with_sizes(counts)  # one node for gradients, not one per tensor
        return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    buffer = buffer.contiguous()
    begins = itertools.accumulate(counts, initial=int(buffer.storage_offset()))
    # Half the time of slices and views.
    return [
        buffer.as_strided(shape, _strides(shape), begin)
        for shape, begin in zip(shapes, begins, strict=False)  # the last is the end
    ]


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) == 2:  # most are
        return shape[1], 1
    if len(shape) == 1:
        return (1,)
    products = itertools.accumulate(reversed(shape[1:]), lambda x, y: x * y, initial=1)
    return tuple(products)[::-1] if shape else ()
