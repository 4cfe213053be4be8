"""Find the device of a name, and copy tensors between main memory and a device."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

_ALIGNMENT = 256  # bytes; as of memory that torch allocates on a device
_MOST_PADDING = 16  # elements between two rows that are copied along


def find_device(where: str, device: torch.device | str) -> torch.device:
    """Return a device of this machine; "cuda" is the current CUDA device.

    Args:
        where: Begins a message.
        device: Name of the device, such as "cpu" or "cuda:1".

    Raises:
        ValueError: There is no such device, or it is of another kind than cpu, cuda and meta.
    """
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"{where} expected a device of torch, got {device!r}: {error}") from error
    if parsed.type in ("cpu", "meta"):
        return torch.device(parsed.type)
    if parsed.type != "cuda":
        raise ValueError(f"{where} expected device cpu, cuda or meta, got {str(parsed)!r}")
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = parsed.index
    if index is None:
        index = torch.cuda.current_device() if num_devices else 0
    if index >= num_devices:
        raise ValueError(
            f"{where} expected one of {num_devices} CUDA devices of this machine, got "
            f"{str(parsed)!r}; name another device, such as 'cpu'"
        )
    return torch.device("cuda", index)


class Sent(NamedTuple):
    """Tensors on a device, which a stream copies there.

    Attributes:
        tensors: The tensors.
        memory: Memory of all of them.
        mark: Event after the copy; None on the CPU.
    """

    tensors: list[torch.Tensor]
    memory: torch.Tensor
    mark: torch.cuda.Event | None

    def await_on_stream(self) -> None:
        """Let the current stream of the calling thread wait for the copy; the host does not."""
        if self.mark is not None:
            stream = torch.cuda.current_stream(self.memory.device)
            stream.wait_event(self.mark)
            self.memory.record_stream(stream)


class Fetched(NamedTuple):
    """Tensors in main memory, which a stream copies there.

    Attributes:
        tensors: The tensors; no value is read before `wait`.
        mark: Event after the copies; None on the CPU.
    """

    tensors: list[torch.Tensor]
    mark: torch.cuda.Event | None

    def wait(self) -> list[torch.Tensor]:
        """Wait until the tensors are there, and return them."""
        if self.mark is not None:
            self.mark.synchronize()
        return self.tensors


class DeviceTransfer:
    """Copies tensors to a device and back, through pinned memory, on a stream for each direction.

    Neither direction lets the host wait: events order the streams, and torch gives pinned memory to
    the next copy when the stream has used it. Autograd records nothing. Thread-safe.

    On the CPU, both directions are plain copies.

    Args:
        device: The device, as `find_device` returns it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._in: torch.cuda.Stream | None = None
        self._out: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, tensors: Sequence[torch.Tensor]) -> Sent:
        """Copy tensors to the device, all in one piece; the sources may change afterwards.

        Rows keep a small distance in memory, by which they are aligned.
        """
        layouts, starts, num_bytes = [_Layout.of(tensor) for tensor in tensors], [], 0
        for tensor, layout in zip(tensors, layouts, strict=True):
            starts.append(num_bytes)
            num_bytes += -(-layout.size * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        with torch.no_grad():
            packed = _host_memory((num_bytes,), torch.uint8, is_pinned=self._in is not None)
            pieces = list(zip(tensors, layouts, starts, strict=True))
            for tensor, layout, start in pieces:
                layout.piece(packed, tensor.dtype, start).copy_(layout.flat(tensor))
            memory, mark = packed, None
            if self._in is not None:
                with torch.cuda.stream(self._in):
                    memory = packed.to(self.device, non_blocking=True)
                    mark = self._in.record_event()
            views = [
                layout.piece(memory, tensor.dtype, start).as_strided(layout.shape, layout.stride)
                for tensor, layout, start in pieces
            ]
        return Sent([view.detach() for view in views], memory, mark)

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Fetched:
        """Copy tensors to main memory, after the work that the current stream has so far."""
        with torch.no_grad():
            if self._out is None:
                return Fetched([tensor.detach().clone() for tensor in tensors], None)
            self._out.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._out):
                copies = [self._fetch_one(tensor.detach()) for tensor in tensors]
                mark = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                mark.record(self._out)
        return Fetched(copies, mark)

    def _fetch_one(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cuda:
            return tensor.clone()
        copy = _host_memory(tensor.shape, tensor.dtype, is_pinned=True)
        assert self._out is not None
        tensor.record_stream(self._out)
        return copy.copy_(tensor, non_blocking=True)


class _Layout(NamedTuple):
    """The place of a tensor's elements in memory; `size` counts them with the padding."""

    shape: torch.Size
    stride: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_Layout":
        shape, size = tensor.shape, tensor.numel()
        if size and tensor.dim() == 2 and tensor.stride(1) == 1:
            apart = tensor.stride(0)
            if 0 < apart - shape[1] < _MOST_PADDING:
                return cls(shape, (apart, 1), (shape[0] - 1) * apart + shape[1])
        strides = [math.prod(shape[i + 1 :]) for i in range(tensor.dim())]
        return cls(shape, tuple(strides), size)

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.size == tensor.numel():
            return tensor.detach().reshape(-1)
        return tensor.detach().as_strided((self.size,), (1,))

    def piece(self, memory: torch.Tensor, dtype: torch.dtype, start: int) -> torch.Tensor:
        return memory[start : start + self.size * dtype.itemsize].view(dtype)


def to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return contiguous copies in main memory of tensors anywhere, after one wait per device."""
    with torch.no_grad():
        copies = []
        for tensor in tensors:
            copy = _host_memory(tensor.shape, tensor.dtype, is_pinned=tensor.is_cuda)
            copies.append(copy.copy_(tensor.detach(), non_blocking=tensor.is_cuda))
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
    return copies


def state_on(device: torch.device, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state of a parameter on a device.

    Counts of steps stay where they are, as torch keeps them in main memory.
    """
    return {name: v if name == "step" else _moved(v, device) for name, v in state.items()}


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _moved(item, device) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_moved(item, device) for item in value)
    return value


def _host_memory(shape: Sequence[int], dtype: torch.dtype, *, is_pinned: bool) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=is_pinned)
