"""Make a run the current one, for drivers that do not."""

from collections.abc import Callable

from monolith.train.driver import Coordinator, Hook, Run, enter_run


class CurrentRunHook(Hook):
    """Makes the run the current one of the calling context, for drivers that do not.

    `drive` does so itself, from before `begin`. The run is taken off again when it ends, well or
    not. One object serves one run at a time.
    """

    def __init__(self) -> None:
        self._leave: Callable[[], None] | None = None

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Record the run, in the place of its entry from before a recovery."""
        self._clear()
        self._leave = enter_run(run)
        coordinator.add_cleanup(self._clear)

    def end(self, run: Run) -> None:
        """Take the run off."""
        self._clear()

    def _clear(self) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None
