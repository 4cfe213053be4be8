"""What a hook is, and what it is given in each step of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monolith.util.coordinator import Coordinator
from monolith.util.run import Run

__all__ = ["Hook", "StepContext", "StepResults"]


@dataclass(frozen=True)
class StepContext:
    """What a hook sees of a step: the run, and a way to end it.

    Args:
        run: the run.
        coordinator: of its threads.
    """

    run: Run
    coordinator: Coordinator

    def request_stop(self) -> None:
        """End the run normally when the step is done, with the `after_run` of every hook."""
        self.coordinator.request_stop()

    @property
    def stop_requested(self) -> bool:
        """Whether somebody requested the end, or a thread of the run failed."""
        return self.coordinator.stop_requested


@dataclass(frozen=True)
class StepResults:
    """What a step gave.

    Args:
        value: the result of the step function.
        extra: by hook, the result of the callable that its `before_run` returned.
    """

    value: Any
    extra: Mapping["Hook", Any] = field(default_factory=dict)


class Hook:
    """Takes part in a run; every method does nothing until it is overridden.

        begin, after_create_session, (before_run, step, after_run) ..., end

    Hooks are called in the order of their list. When the run fails, `end` is not called: what must
    happen then too is a clean-up of the coordinator.
    """

    def begin(self) -> None:
        """Called once, before the run starts; the run is already current."""

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Called when parameters are initialised or restored, and again after each recovery."""

    def before_run(self, ctx: StepContext) -> Callable[[], Any] | None:
        """Called before each step; what it returns is called before the step, in hook order."""

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Called after each step."""

    def end(self, run: Run) -> None:
        """Called once, when the run ends normally."""
