"""Copy tensors to a device, and order the CUDA streams that make and use a tensor."""

from collections.abc import Sequence

import torch

from monolith.ops.devices import find_device

Ready = dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Event]]
"""For each device, the stream that made the tensors, and an event after that work."""


def mark_ready(tensors: Sequence[torch.Tensor]) -> Ready | None:
    """Mark the work that the calling thread's current streams have been given so far.

    Returns:
        For `wait_ready`; None where no tensor is on a CUDA device.
    """
    has_started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if not has_started or not any(tensor.is_cuda for tensor in tensors):
        return None
    ready = {}
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        stream = torch.cuda.current_stream(device)
        ready[device] = (stream, stream.record_event())
    return ready


def wait_ready(tensors: Sequence[torch.Tensor], ready: Ready | None) -> None:
    """Make the calling thread's current streams wait for that work; the host does not wait.

    The memory of the tensors is not given to others before these streams have used it.
    """
    for device, (made_on, mark) in (ready or {}).items():
        stream = torch.cuda.current_stream(device)
        if stream == made_on:
            continue
        stream.wait_event(mark)
        for tensor in tensors:
            if tensor.device == device:
                tensor.record_stream(stream)


class DeviceCopier:
    """Bring tensors to a device; those that are there already are passed on as they are.

        CPU -> CUDA    copied into pinned memory by the calling thread, then on a stream of the
                       copier; the host does not wait for the device, and the source may change
        CUDA -> CUDA   copied between the devices; the host does not wait
        CUDA -> CPU    the calling thread waits for the copy

    Autograd records nothing. Thread-safe.

    Args:
        where: for messages.
        device: see `find_device`.

    Raises:
        ValueError: see `find_device`.
    """

    def __init__(self, where: str, device: torch.device | str) -> None:
        self._where, self.device = where, find_device(where, device)
        self.stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def copy(
        self, tensors: Sequence[torch.Tensor]
    ) -> tuple[tuple[torch.Tensor, ...], Ready | None]:
        """Return the tensors on the device, and what `wait_ready` takes.

        Raises:
            ValueError: a tensor on the meta device has no data to copy.
        """
        are_there = [tensor.device == self.device for tensor in tensors]
        if all(are_there):
            return tuple(tensors), mark_ready(tensors)
        with torch.no_grad():
            if self.stream is None:
                return tuple(map(self._copy_one, tensors)), None
            if any(are_there):  # the mark below is for these tensors too
                self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                copies = tuple(map(self._copy_one, tensors))
            return copies, {self.device: (self.stream, self.stream.record_event())}

    def _copy_one(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self.device:
            return tensor
        if tensor.is_meta:
            raise ValueError(
                f"{self._where} expected tensors with data for device {str(self.device)!r}, "
                "got one on the meta device"
            )
        if self.device.type != "cuda":
            return tensor.to(self.device)
        if tensor.device.type == "cpu":
            # A copy of its own: the caller may overwrite the source, also where that is pinned. The
            # allocator of pinned memory reuses the copy only after the stream has read it.
            tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
        return tensor.to(self.device, non_blocking=True)
