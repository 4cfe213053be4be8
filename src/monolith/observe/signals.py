"""What a process is doing: stack traces on a signal."""

import os
import signal
import sys
import threading
import traceback
from types import FrameType


def print_stack_trace(sig: int, frame: FrameType | None) -> None:
    """Print the stack of `frame`, the interrupted one, then those of all other threads.

    Args:
        sig: number of the signal.
        frame: where the signal came in.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [f"Signal {sig}, stack of the interrupted thread:\n"]
    lines += traceback.format_stack(frame) if frame is not None else []
    for ident, other in sys._current_frames().items():
        if ident != threading.get_ident():
            lines += [
                f"Stack of thread {names.get(ident, ident)}:\n",
                *traceback.format_stack(other),
            ]
    try:
        print("".join(lines), end="", flush=True)
    except RuntimeError:  # the signal came while the same stream was being written
        os.write(2, "".join(lines).encode())


def install_stack_trace_handler() -> bool:
    """Print stack traces on SIGUSR1, after what the handler before this one does.

    Installed twice, it prints twice.

    Returns:
        False where no handler can be installed: outside the main thread, and on systems without
        this signal.
    """
    number = getattr(signal, "SIGUSR1", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        return False
    previous = signal.getsignal(number)

    def handle(sig: int, frame: FrameType | None) -> None:
        if callable(previous):
            previous(sig, frame)
        print_stack_trace(sig, frame)

    signal.signal(number, handle)
    return True
