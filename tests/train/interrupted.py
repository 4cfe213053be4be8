"""A program that blocks in its main thread until it is interrupted: `interrupted.py CASE`."""

import sys
import threading
import time

import torch

from monolith.data.str_queue import StrQueue
from monolith.native_training.queues import EnqueueHook, PrefetchQueue, TensorQueue
from monolith.train import Coordinator, Hook
from monolith.train.driver import drive


def tell_when_blocked(function_name):
    """Print a line once the main thread is inside a function."""

    def look():
        main = threading.main_thread().ident
        while True:
            frame, names = sys._current_frames()[main], []
            while frame is not None:
                names.append(frame.f_code.co_name)
                frame = frame.f_back
            if function_name in names:
                print("blocked", flush=True)
                return
            time.sleep(0.001)

    threading.Thread(target=look, daemon=True).start()


class Report(Hook):
    """Prints the calls of the driver at the end of the run."""

    def after_create_session(self, run, coordinator):
        coordinator.add_cleanup(lambda: print("clean-up", flush=True))

    def end(self, run):
        print("end", flush=True)


def never():
    threading.Event().wait(600)
    return torch.ones(1)


def block_in_run():
    """Let the step wait for a producer that waits for the end of the run."""
    empty = TensorQueue(1)
    queue = PrefetchQueue([lambda: empty.dequeue()])

    class Wake(Hook):
        def after_create_session(self, run, coordinator):
            coordinator.add_cleanup(empty.cancel)

    drive(queue.dequeue, [EnqueueHook(queue), Wake(), Report()])


def block_in_enqueue():
    queue = PrefetchQueue([torch.ones(1)], capacity=1)
    queue.enqueue_op()
    queue.enqueue_op()


def block_in_join():
    coordinator = Coordinator(stop_seconds=600)
    coordinator.start(never, name="never")
    coordinator.close()


def block_in_section():
    lock = threading.RLock()
    thread = threading.Thread(target=lambda: lock.acquire() and never(), daemon=True)
    thread.start()
    while lock.acquire(blocking=False):
        lock.release()
    StrQueue(critical_section=lock)


CASES = {
    "run": (block_in_run, "wait_until"),
    "enqueue": (block_in_enqueue, "wait_until"),
    "join": (block_in_join, "_join"),
    "section": (block_in_section, "_inside"),
}

if __name__ == "__main__":
    call, blocked_in = CASES[sys.argv[1]]
    tell_when_blocked(blocked_in)
    try:
        call()
    except KeyboardInterrupt:
        alive = [thread.name for thread in threading.enumerate() if "fill" in thread.name]
        print("interrupted", alive, flush=True)
