"""Find the device of an accelerator by its name, and try it out."""

import logging
import re
import time
from collections.abc import Callable

import torch

from monolith.errors import FailedPreconditionError, UnavailableError

_log = logging.getLogger(__name__)

_CUDA = re.compile(r"cuda(:\d+)?")
_POLL_SECONDS, _HEALTHY_SECONDS = 1.0, 60.0


def device_of(accelerator: str) -> str:
    """Return the name of the device of an accelerator.

    Raises:
        NotImplementedError: The accelerator is `xla`.
        ValueError: The accelerator is none of those that are known.

    Example:
        >>> device_of("tpu"), device_of("cuda:1")
        ('cuda', 'cuda:1')
    """
    if accelerator == "tpu":
        return "cuda"
    if _CUDA.fullmatch(accelerator):
        return accelerator
    if accelerator.startswith("xla"):
        raise NotImplementedError(
            f"[accelerator] expected tpu, cuda or cuda:N, got {accelerator!r}; there is no backend "
            "for XLA devices"
        )
    raise ValueError(f"[accelerator] expected tpu, cuda or cuda:N, got {accelerator!r}")


def check_device(device: str) -> None:
    """Refuse a CUDA device that is not there.

    Raises:
        FailedPreconditionError: There is no such device.
    """
    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(device.partition(":")[2] or 0)
    if index >= number:
        raise FailedPreconditionError(
            f"[TPURunner] expected the device {device!r}, got {number} CUDA devices; start the "
            "runner on a machine with one, or test the task on the CPU with --cpu_test"
        )


def await_healthy(
    device: str,
    *,
    try_out: Callable[[str], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    seconds: float = _HEALTHY_SECONDS,
) -> None:
    """Prepare the runtime of a device, and wait until the device computes what it should.

    Args:
        device: Name of the device.
        try_out: Raises a `RuntimeError` while the device is not healthy; None computes a sum.
        sleep: Waits for some seconds.
        seconds: Limit on the wait.

    Raises:
        UnavailableError: The device is not healthy after the limit.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            (try_out or _compute)(device)
        except RuntimeError as error:
            if time.monotonic() >= end:
                raise UnavailableError(
                    f"[TPURunner] expected a healthy device {device!r} within {seconds:g} s, got: "
                    f"{error}"
                ) from error
            _log.warning("waiting for the device %s: %s", device, error)
            sleep(_POLL_SECONDS)
        else:
            return


def _compute(device: str) -> None:
    total = torch.ones(1024, device=device).sum().item()
    if total != 1024:
        raise RuntimeError(f"the sum of 1,024 ones is {total}")
