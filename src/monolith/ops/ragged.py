"""`Ragged`: rows of different lengths as values and row splits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    import pyarrow


def as_index(where: str, name: str, values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the index as contiguous int64; refuse an index whose shape cannot divide `values`."""
    for argument, tensor in (("values", values), (name, index)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{where} expected {argument} as a torch.Tensor, got {type(tensor).__name__}"
            )
        if tensor.layout != torch.strided or tensor.is_nested:
            layout = "nested" if tensor.is_nested else name_of(tensor.layout)
            raise ValueError(f"{where} expected {argument} as a dense tensor, got layout {layout}")
    if values.dim() == 0:
        raise ValueError(f"{where} expected values with at least 1 dimension, got shape ()")
    if index.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"{where} expected {name} of dtype int64 or int32, got {name_of(index.dtype)}; "
            "cast with .long()"
        )
    if index.dim() != 1:
        raise ValueError(
            f"{where} expected {name} with 1 dimension, got shape {tuple(index.shape)}"
        )
    if index.device != values.device:
        raise ValueError(
            f"{where} expected {name} on device {values.device}, that of values, "
            f"got {index.device}; move with .to({str(values.device)!r})"
        )
    return index.long().contiguous()


def check_splits(where: str, name: str, splits: torch.Tensor, num_values: int) -> None:
    """Refuse splits that do not run from 0 to the number of values without a decrease."""
    if splits.shape[0] == 0:
        raise ValueError(f"{where} expected {name} with at least 1 entry, got 0; no rows are [0]")
    if torch.compiler.is_compiling() or splits.is_meta:
        return
    host = splits.cpu().numpy()  # one wait for the device; numpy is faster on short arrays
    if host[0] != 0:
        raise ValueError(f"{where} expected {name} that begin with 0, got {host[0]}")
    backwards = host[1:] < host[:-1]
    if backwards.any():
        i = int(backwards.argmax())
        raise ValueError(
            f"{where} expected {name} that never decrease, got {host[i]} before {host[i + 1]} "
            f"at index {i}"
        )
    if host[-1] != num_values:
        raise ValueError(
            f"{where} expected {name} that end with {num_values}, the number of values, "
            f"got {host[-1]}"
        )


def name_of(kind: torch.dtype | torch.layout) -> str:
    """Return the short name of a dtype or layout: `float32` for torch.float32.

    Example:
        >>> name_of(torch.float32)
        'float32'
    """
    return str(kind).removeprefix("torch.")


def from_arrow(array: pa.Array | pa.ChunkedArray) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy an array of lists to values and row splits; the memory of Arrow must not be written."""
    where = "[Ragged.from_arrow]"
    if not isinstance(array, pa.Array | pa.ChunkedArray):
        raise TypeError(f"{where} expected a pyarrow array, got {type(array).__name__}")
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and not (
        pa.types.is_fixed_size_list(kind)
    ):
        raise TypeError(f"{where} expected an array of lists, got type {kind}")
    item = kind.value_type
    is_number = pa.types.is_integer(item) or pa.types.is_floating(item)
    if not (is_number or pa.types.is_boolean(item)):
        raise TypeError(f"{where} expected lists of numbers, got type {kind}")
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        raise ValueError(
            f"{where} expected no null rows, got {array.null_count}; fill them with empty lists"
        )
    flat = array.flatten()
    if flat.null_count:
        raise ValueError(f"{where} expected no null values, got {flat.null_count}; drop them")
    lengths = array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = np.array(flat.to_numpy(zero_copy_only=False))
    return torch.from_numpy(values), torch.from_numpy(splits)


def to_arrow(values: torch.Tensor, row_splits: torch.Tensor) -> pa.LargeListArray:
    """Return lists on the memory of both tensors; bool values are copied as bits."""
    where = "[Ragged.to_arrow]"
    if values.dim() != 1:
        raise ValueError(
            f"{where} expected values with 1 dimension, got shape {tuple(values.shape)}"
        )
    if values.device.type != "cpu":
        raise ValueError(
            f"{where} expected values on device cpu, got {values.device}; move with .cpu()"
        )
    if values.dtype == torch.bfloat16 or values.dtype.is_complex:
        name = str(values.dtype).removeprefix("torch.")
        raise TypeError(
            f"{where} expected values of a dtype that Arrow has, got {name}; cast with .float()"
        )
    items = pa.array(values.detach().resolve_neg().numpy())
    return pa.LargeListArray.from_arrays(pa.array(row_splits.numpy()), items)


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of different lengths: the values of all rows in order, and where each row begins.

        rows          [[7, 8], [], [9]]

        values        7   8 | | 9          # (num_values, ...)
        row_splits  0       2 2   3        # (num_rows + 1,)
        lengths           2  0  1          # (num_rows,), computed

    Row i is `values[row_splits[i] : row_splits[i + 1]]`. Both tensors are checked here and shared,
    not copied: do not change `row_splits` in place. On an accelerator the check waits for the
    device; under `torch.compile` only shapes and dtypes are checked. Reads are thread-safe. A
    pytree of its two tensors.

    Args:
        values: values of all rows, of any dtype, with at least one dimension; (num_values, ...).
        row_splits: positions that begin with 0, never decrease and end with num_values; int64, or
            int32, which is converted; on the device of `values`; (num_rows + 1,).

    Raises:
        TypeError: an argument is no tensor, or the dtype of `row_splits` is wrong.
        ValueError: a shape, a layout, a device or the contents of `row_splits` are wrong.

    Example:
        >>> ragged = Ragged(torch.tensor([7, 8, 9]), torch.tensor([0, 2, 2, 3]))
        >>> ragged.to_lists()
        [[7, 8], [], [9]]
        >>> ragged.lengths
        tensor([2, 0, 1])
    """

    values: torch.Tensor
    row_splits: torch.Tensor
    # Cache of `fused_value_rowids`; copies, moves and pytrees of this object start without it.
    monolith_fused_value_rowids: torch.Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        where, name = "[Ragged]", "row_splits"
        splits = as_index(where, name, self.values, self.row_splits)
        check_splits(where, name, splits, self.values.shape[0])
        object.__setattr__(self, "row_splits", splits)

    @classmethod
    def from_lists(
        cls,
        rows: Iterable[Sequence[Any]],
        *,
        dtype: torch.dtype = torch.int64,
        device: torch.device | str = "cpu",
    ) -> "Ragged":
        """Copy Python lists; a value is a number, or nested lists with one shape for all values.

        Example:
            >>> Ragged.from_lists([[7, 8], [], [9]])
            Ragged(values=tensor([7, 8, 9]), row_splits=tensor([0, 2, 2, 3]))
        """
        flat: list[Any] = []
        splits = [0]
        for i, row in enumerate(rows):
            if not isinstance(row, list | tuple):
                raise TypeError(
                    f"[Ragged.from_lists] expected row {i} as a list, got {type(row).__name__}"
                )
            flat.extend(row)
            splits.append(len(flat))
        numbers = torch.tensor(flat, device="cpu")
        if numbers.numel() and not torch.can_cast(numbers.dtype, dtype):  # torch makes a 1 of 1.5
            raise TypeError(
                f"[Ragged.from_lists] expected values of dtype {name_of(dtype)}, got "
                f"{name_of(numbers.dtype)}; pass dtype={numbers.dtype}"
            )
        values = torch.tensor(flat, dtype=dtype, device=device)
        return cls._unchecked(values, torch.tensor(splits, device=device))

    @classmethod
    def from_offsets(
        cls, values: torch.Tensor, offsets: torch.Tensor, *, include_last: bool = False
    ) -> "Ragged":
        """Return the rows of the input and offsets of `torch.nn.EmbeddingBag`.

        Args:
            values: values of all rows, as in the constructor.
            offsets: position of the first value of each row; int64 or int32.
            include_last: whether the last entry of `offsets` is the number of values, as with
                `EmbeddingBag(include_last_offset=True)`.

        Example:
            >>> Ragged.from_offsets(torch.tensor([7, 8, 9]), torch.tensor([0, 2, 2])).to_lists()
            [[7, 8], [], [9]]
        """
        where, name = "[Ragged.from_offsets]", "offsets"
        splits = as_index(where, name, values, offsets)
        if not include_last:
            splits = torch.cat([splits, splits.new_full((1,), values.shape[0])])
            name = "offsets and the number of values"
        check_splits(where, name, splits, values.shape[0])
        return cls._unchecked(values, splits)

    @classmethod
    def from_lengths(cls, values: torch.Tensor, lengths: torch.Tensor) -> "Ragged":
        """Divide `values` into rows of these lengths; int64 or int32.

        Example:
            >>> Ragged.from_lengths(torch.tensor([7, 8, 9]), torch.tensor([2, 0, 1])).to_lists()
            [[7, 8], [], [9]]
        """
        where = "[Ragged.from_lengths]"
        lengths = as_index(where, "lengths", values, lengths)
        splits = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        check_splits(where, "running sums of lengths", splits, values.shape[0])
        return cls._unchecked(values, splits)

    @classmethod
    def from_nested(cls, nested: torch.Tensor) -> "Ragged":
        """Convert a nested tensor of layout `torch.jagged`; differentiable, copies to close gaps.

        Example:
            >>> jagged = Ragged.from_lists([[7, 8], [], [9]]).to_nested()
            >>> Ragged.from_nested(jagged).to_lists()
            [[7, 8], [], [9]]
        """
        where = "[Ragged.from_nested]"
        if not isinstance(nested, torch.Tensor):
            raise TypeError(f"{where} expected a nested tensor, got {type(nested).__name__}")
        if nested.layout != torch.jagged:
            raise ValueError(
                f"{where} expected a nested tensor of layout jagged, got layout "
                f"{name_of(nested.layout)}; make it with torch.nested and layout=torch.jagged"
            )
        # The shape is of no use: under torch.compile it does not tell which dimension differs.
        if nested._ragged_idx != 1:  # type: ignore[attr-defined]
            raise ValueError(
                f"{where} expected rows that differ in dimension 1, got shape "
                f"({', '.join(map(str, nested.shape))}); transpose first"
            )
        if nested.lengths() is not None:  # type: ignore[attr-defined]
            nested = nested.contiguous()
        values = nested.values()
        splits = as_index(where, "offsets", values, nested.offsets())  # type: ignore[attr-defined]
        check_splits(where, "offsets", splits, values.shape[0])
        return cls._unchecked(values, splits)

    @classmethod
    def from_arrow(cls, array: "pyarrow.Array | pyarrow.ChunkedArray") -> "Ragged":
        """Copy lists of numbers from Arrow: an array of lists, or a column of lists of a table.

        Accepts lists, large lists and lists of a fixed size, but no views of lists.

        Example:
            >>> import pyarrow
            >>> Ragged.from_arrow(pyarrow.array([[7, 8], [], [9]])).to_lists()
            [[7, 8], [], [9]]
        """
        return cls._unchecked(*from_arrow(array))

    @classmethod
    def _unchecked(cls, values: Any, row_splits: Any) -> "Ragged":
        """Return an object without checks, for valid tensors and for leaves of a mapped pytree."""
        ragged = object.__new__(cls)
        object.__setattr__(ragged, "values", values)
        object.__setattr__(ragged, "row_splits", row_splits)
        object.__setattr__(ragged, "monolith_fused_value_rowids", None)
        return ragged

    def __len__(self) -> int:
        return self.num_rows

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self.values, self.row_splits)

    @property
    def num_rows(self) -> int:
        """Number of rows, with empty ones."""
        return self.row_splits.shape[0] - 1

    @property
    def lengths(self) -> torch.Tensor:
        """Number of values of each row, computed on each access; int64 (num_rows,)."""
        return self.row_splits.diff()

    @property
    def offsets(self) -> torch.Tensor:
        """Begin of each row, as `torch.nn.EmbeddingBag` takes it; a view, (num_rows,)."""
        return self.row_splits[:-1]

    def to_lists(self) -> list[list[Any]]:
        """Copy the rows to Python lists."""
        values, splits = self.values.tolist(), self.row_splits.tolist()
        return [values[begin:end] for begin, end in pairwise(splits)]

    def to_nested(self) -> torch.Tensor:
        """Return a nested tensor of layout `torch.jagged` on the same memory; differentiable."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.row_splits)

    def to_arrow(self) -> "pyarrow.LargeListArray":
        """Return Arrow lists on the same memory, with 64-bit offsets. Do not change it meanwhile.

        Example:
            >>> Ragged.from_lists([[7, 8], [], [9]]).to_arrow().to_pylist()
            [[7, 8], [], [9]]
        """
        return to_arrow(self.values, self.row_splits)

    @property
    def device(self) -> torch.device:
        """Device of both tensors."""
        return self.values.device

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Ragged":
        """Return the rows on another device, or this object if it is there; differentiable.

        Args:
            device: target device.
            non_blocking: whether a copy from pinned memory returns at once, as in `Tensor.to`.
        """
        values = self.values.to(device, non_blocking=non_blocking)
        row_splits = self.row_splits.to(device, non_blocking=non_blocking)
        if values is self.values and row_splits is self.row_splits:
            return self
        return self._unchecked(values, row_splits)

    def cpu(self) -> "Ragged":
        """Return the rows in the memory of the host."""
        return self.to("cpu")

    def pin_memory(self) -> "Ragged":
        """Return a copy in page-locked memory; `DataLoader(pin_memory=True)` calls this method."""
        return self._unchecked(self.values.pin_memory(), self.row_splits.pin_memory())

    def is_pinned(self) -> bool:
        """Whether both tensors are in page-locked memory."""
        return self.values.is_pinned() and self.row_splits.is_pinned()


pytree.register_pytree_node(
    Ragged,
    lambda ragged: ([ragged.values, ragged.row_splits], None),
    lambda leaves, _: Ragged._unchecked(*leaves),
    serialized_type_name="monolith.ops.Ragged",
    flatten_with_keys_fn=lambda ragged: (
        [
            (pytree.GetAttrKey("values"), ragged.values),
            (pytree.GetAttrKey("row_splits"), ragged.row_splits),
        ],
        None,
    ),
)
