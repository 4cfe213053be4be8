"""Write the values of calls and answers as bytes, and read bytes that may come from anywhere.

A value is a tree of None, bool, int, float, str, bytes, tensors, tuples, lists and dicts. The tree
and small tensors make one body; each large tensor is a column, a frame of its own that is not
copied. `docs/wire.md` has the table of tags.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from monolith.errors import InvalidArgumentError

Buffer = bytes | memoryview

MAX_INLINE_BYTES = 16 << 10
"""Tensors of one value are in the body as long as they have at most this many bytes together."""
MAX_COLUMNS = 4096
"""Maximum number of columns of a message."""

_MAX_DEPTH = 16
_MAX_DIMS = 8
_ALIGNMENT = 8

_DTYPES = (
    torch.float32,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.float64,
    torch.int16,
    torch.int8,
)
_NUMBER_OF: Mapping[torch.dtype, int] = MappingProxyType({d: i for i, d in enumerate(_DTYPES)})
_ITEM_BYTES = tuple(dtype.itemsize for dtype in _DTYPES)

_COUNT = struct.Struct("<BI")
_INT = struct.Struct("<Bq")
_UINT = struct.Struct("<BQ")
_FLOAT = struct.Struct("<Bd")
_TENSOR = struct.Struct("<BBB")

_NONE, _FALSE, _TRUE = b"N", b"F", b"T"
_CONSTANTS = MappingProxyType({_NONE[0]: None, _FALSE[0]: False, _TRUE[0]: True})
_TAG_INT, _TAG_UINT, _TAG_FLOAT = b"i"[0], b"u"[0], b"d"[0]
_TAG_TEXT, _TAG_BYTES = b"s"[0], b"b"[0]
_TAG_TUPLE, _TAG_LIST, _TAG_DICT = b"("[0], b"["[0], b"{"[0]
_TAG_INLINE, _TAG_COLUMN = b"t"[0], b"c"[0]


def encode(value: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Return the body and the tensors of its columns, contiguous and on the CPU.

    Raises:
        TypeError: a part of the value is none of the types that travel.
    """
    writer = _Writer()
    writer.write(value)
    return b"".join(writer.parts), writer.columns


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor, which the view keeps alive."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))  # one element may have any stride
    return flat.view(torch.uint8).numpy().data


def decode(body: Buffer, columns: Sequence[Buffer] = ()) -> Any:
    """Return the value of a body and its columns.

    Nothing is allocated that is larger than the bytes that came. Tensors share the memory of the
    columns where it is aligned.

    Raises:
        InvalidArgumentError: the bytes are not exactly one value.
    """
    reader = _Reader(memoryview(body), columns)
    value = reader.read(0)
    if reader.at != len(body):
        raise _refused(f"a value of {len(body)} bytes", f"one of {reader.at} bytes")
    if reader.num_columns != len(columns):
        raise _refused(f"a value with {len(columns)} columns", f"one with {reader.num_columns}")
    return value


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.columns: list[torch.Tensor] = []
        self._num_bytes = self._num_inline = 0

    def _add(self, part: bytes) -> None:
        self.parts.append(part)
        self._num_bytes += len(part)

    def write(self, value: Any) -> None:
        kind = type(value)
        if value is None or kind is bool:
            self._add(_NONE if value is None else _TRUE if value else _FALSE)
        elif kind is int:
            is_signed = value < 1 << 63
            pack = _INT if is_signed else _UINT
            try:
                self._add(pack.pack(_TAG_INT if is_signed else _TAG_UINT, value))
            except struct.error as error:
                raise TypeError(
                    f"[wire.encode] expected ints in [-2**63, 2**64), got {value}"
                ) from error
        elif kind is float:
            self._add(_FLOAT.pack(_TAG_FLOAT, value))
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif kind is str:
            self._text(value.encode(), _TAG_TEXT)
        elif kind is bytes:
            self._text(value, _TAG_BYTES)
        elif isinstance(value, tuple | list):
            tag = _TAG_TUPLE if isinstance(value, tuple) else _TAG_LIST
            self._add(_COUNT.pack(tag, len(value)))
            for item in value:
                self.write(item)
        elif kind is dict:
            self._add(_COUNT.pack(_TAG_DICT, len(value)))
            for name, item in value.items():
                if type(name) is not str:
                    raise TypeError(f"[wire.encode] expected dicts with names, got key {name!r}")
                self._text(name.encode(), _TAG_TEXT)
                self.write(item)
        else:
            raise TypeError(f"[wire.encode] expected a plain value, got {kind.__name__}")

    def _text(self, data: bytes, tag: int) -> None:
        self._add(_COUNT.pack(tag, len(data)) + data)

    def _tensor(self, tensor: torch.Tensor) -> None:
        number = _NUMBER_OF.get(tensor.dtype)
        if number is None or tensor.device.type != "cpu" or tensor.dim() > _MAX_DIMS:
            raise TypeError(
                f"[wire.encode] expected tensors on the CPU with at most {_MAX_DIMS} dimensions "
                f"and a dtype that travels, got {tensor.dtype} of shape {tuple(tensor.shape)} on "
                f"{tensor.device}"
            )
        tensor = tensor.detach().contiguous()
        num_bytes = tensor.numel() * tensor.element_size()
        is_inline = self._num_inline + num_bytes <= MAX_INLINE_BYTES
        tag = _TAG_INLINE if is_inline else _TAG_COLUMN
        head = _TENSOR.pack(tag, number, tensor.dim())
        self._add(head + struct.pack(f"<{tensor.dim()}Q", *tensor.shape))
        if not is_inline:
            self.columns.append(tensor)
            return
        self._num_inline += num_bytes
        self._add(bytes(-self._num_bytes % _ALIGNMENT))
        self._add(bytes_of(tensor).tobytes() if num_bytes else b"")


class _Reader:
    def __init__(self, body: memoryview, columns: Sequence[Buffer]) -> None:
        self._body, self._columns = body, columns
        self.at = self.num_columns = 0

    def read(self, depth: int) -> Any:
        tag = self._take(1)[0]
        if tag in (_TAG_INT, _TAG_UINT, _TAG_FLOAT):
            form = "<q" if tag == _TAG_INT else "<Q" if tag == _TAG_UINT else "<d"
            return struct.unpack(form, self._take(8))[0]
        if tag in (_TAG_INLINE, _TAG_COLUMN):
            return self._tensor(is_inline=tag == _TAG_INLINE)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == _TAG_TEXT:
            return self._text()
        if tag == _TAG_BYTES:
            return bytes(self._take(self._count()))
        if tag not in (_TAG_TUPLE, _TAG_LIST, _TAG_DICT):
            raise _refused("the tag of a value", f"{tag} at byte {self.at - 1}")
        if depth == _MAX_DEPTH:
            raise _refused(f"at most {_MAX_DEPTH} levels", "more")
        count = self._count()
        if tag == _TAG_DICT:
            return self._dict(count, depth)
        items = [self.read(depth + 1) for _ in range(count)]
        return tuple(items) if tag == _TAG_TUPLE else items

    def _dict(self, count: int, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for _ in range(count):
            if self._take(1)[0] != _TAG_TEXT:
                raise _refused("a name in a dict", f"another value at byte {self.at - 1}")
            name = self._text()
            if name in items:
                raise _refused("different names in a dict", repr(name[:100]))
            items[name] = self.read(depth + 1)
        return items

    def _take(self, num_bytes: int) -> memoryview:
        end = self.at + num_bytes
        if end > len(self._body):
            raise _refused(
                f"{num_bytes} bytes at byte {self.at}", f"a body of {len(self._body)} bytes"
            )
        part = self._body[self.at : end]
        self.at = end
        return part

    def _count(self) -> int:
        """Number of items, each of which has at least a byte."""
        (count,) = struct.unpack("<I", self._take(4))
        if count > len(self._body) - self.at:
            raise _refused(f"at most {len(self._body) - self.at} items", str(count))
        return int(count)

    def _text(self) -> str:
        try:
            return str(self._take(self._count()), "utf-8")
        except UnicodeDecodeError as error:
            raise _refused("text in UTF-8", str(error)) from error

    def _tensor(self, *, is_inline: bool) -> torch.Tensor:
        number, num_dims = self._take(2)
        if number >= len(_DTYPES) or num_dims > _MAX_DIMS:
            raise _refused("the dtype and dimensions of a tensor", f"{number} and {num_dims}")
        shape = struct.unpack(f"<{num_dims}Q", self._take(8 * num_dims))
        num_bytes = _ITEM_BYTES[number]
        for size in shape:
            num_bytes *= size  # an int of Python: it cannot overflow
        if is_inline:
            self._take(-self.at % _ALIGNMENT)
            data: Buffer = bytes(self._take(num_bytes))
        elif self.num_columns >= len(self._columns):
            raise _refused(f"at most {len(self._columns)} columns", "more")
        else:
            data = self._columns[self.num_columns]
            self.num_columns += 1
            if len(data) != num_bytes:
                raise _refused(f"a column of {num_bytes} bytes", f"one of {len(data)}")
        return _tensor_of(data, _DTYPES[number], shape)


def _tensor_of(data: Buffer, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor over the memory, or over a copy that is aligned and can be written."""
    if 0 in shape:
        if math.prod(size or 1 for size in shape) >= 1 << 31:  # torch multiplies some of them
            raise _refused("small sizes of an empty tensor", str(shape))
        return torch.empty(shape, dtype=dtype, device="cpu")
    array = np.frombuffer(data, dtype=np.uint8)
    if not array.flags.writeable or array.ctypes.data % dtype.itemsize:
        array = array.copy()
    tensor = torch.from_numpy(array)
    if dtype is torch.bool and bool((tensor > 1).any()):
        raise _refused("bools of 0 and 1", f"a byte of {int(tensor.max())}")
    return tensor.view(dtype).view(shape)


def _refused(expected: str, got: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"[wire.decode] expected {expected}, got {got}")
