"""`IdleCalls`: lets hooks work while a step waits for its samples."""

import threading
from collections.abc import Callable, Sequence

from monolith.train.driver import Coordinator, Hook, Run, StepContext


class IdleCalls(Hook):
    """The hook that calls `idle` of all hooks while the thread of the steps waits. The first hook.

    Other threads may call this object too, such as one that reads ahead: nothing happens then.

    Args:
        hooks: Hooks of the run, in their order.
        stop: Function that ends the wait and the run, after a hook has requested a stop.
    """

    def __init__(self, hooks: Sequence[Hook], stop: Callable[[], None]) -> None:
        self._hooks = [hook for hook in hooks if type(hook).idle is not Hook.idle]
        self._stop = stop
        self._thread: int | None = None
        self._ctx: StepContext | None = None

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Note the thread of the steps."""
        self._thread, self._ctx = threading.get_ident(), StepContext(run, coordinator)

    def __call__(self) -> None:
        """Call the hooks."""
        if self._ctx is None or threading.get_ident() != self._thread:
            return
        for hook in self._hooks:
            hook.idle(self._ctx)
        if self._ctx.stop_requested:
            self._stop()
