"""Order the CUDA streams that make and use a tensor."""

from collections.abc import Sequence

import torch

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
