"""Stack traces of a process on a signal."""

import os
import signal
import sys
import threading
import traceback
from types import FrameType


def print_stack_trace(sig: int, frame: FrameType | None) -> None:
    """Print the stack of `frame`, the interrupted frame, then those of all other threads.

    Args:
        sig: number of the signal.
        frame: interrupted frame.
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
    except RuntimeError:  # the signal interrupted a write to the same stream
        os.write(2, "".join(lines).encode())


def install_stack_trace_handler() -> bool:
    """Print stack traces on SIGUSR1, after the previous handler has run.

    Two installed handlers print twice.

    Returns:
        Whether the handler was installed: False outside the main thread, and on systems without
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
