"""What a run is beside tables and tensors: step, time, random state, and where its data is."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from monolith.data import Batch
from monolith.train.random_numbers import RANDOM_NAMES, random_states, set_random_states
from monolith.train.rates import RateValue
from monolith.train.step_clock import StepClock
from monolith.util.run import Run

if TYPE_CHECKING:
    from monolith.train.figures import Meter

__all__ = ["RunState", "position_of"]

_log = logging.getLogger(__name__)


def position_of(batches: Iterator[Batch]) -> Any:
    """Where the next batch begins: `state_dict()` of the iterator; None if it has none."""
    state_dict = getattr(batches, "state_dict", None)
    return None if state_dict is None else state_dict()


class RunState:
    """The state of the last `fit`, or of the one that runs; a checkpoint has it.

    Args:
        run: counts the steps.
        clock: gives the time of updates.
        rates: learning rates of the task, by name.

    Attributes:
        first: the global step at which the `fit` began; `TrainSettings.steps` counts from there.
        position: of its source, behind the last batch that was trained; None: nobody knows.
        best: figure of its evaluations that an early stop looks at; None before the first.
        num_worse: evaluations since then.
        saved_rates: learning rates of the task when the restored checkpoint was saved; None: there
            is no checkpoint, or an older one.
    """

    def __init__(self, run: Run, clock: StepClock, rates: Mapping[str, RateValue]) -> None:
        self._run, self._clock, self._rates = run, clock, rates
        self.saved_rates: Mapping[str, RateValue] | None = None
        self.first = 0
        self.position: Any = None
        self.best: float | None = None
        self.num_worse = 0
        self._meter: Meter | None = None
        self._summed: Any = None  # of the meter that was saved
        self._random: dict[str, Any] | None = None  # that was restored, for the next `fit`

    @property
    def step(self) -> int:
        """The global step."""
        return self._run.global_step or 0

    def begin(self, source: Iterable[Batch]) -> Iterator[Batch]:
        """Iterate over the source of a `fit`; after a restore, behind the last batch trained."""
        random, self._random = self._random, None
        batches = self._iterate(source, is_restored=random is not None)
        if random is not None:
            set_random_states(
                random
            )  # the source may have drawn numbers, as it did when the run began
        return batches

    def _iterate(self, source: Iterable[Batch], *, is_restored: bool) -> Iterator[Batch]:
        if not is_restored:
            self.first, self.best, self.num_worse = self.step, None, 0
            self._summed = None
        elif self.position is not None and hasattr(source, "resume"):
            resumed: Iterator[Batch] = source.resume(self.position)
            return resumed
        elif self.step > self.first:
            _log.warning(
                "the source %s has no position in the checkpoint, or no resume; it is read from "
                "where it is",
                type(source).__name__,
            )
        return iter(source)

    def watch(self, meter: "Meter") -> None:
        """Save what the meter of a `fit` sums up; after a restore it goes on where it was."""
        self._meter = meter
        if self._summed is not None:
            meter.load_state_dict(self._summed)

    def state_dict(self) -> dict[str, Any]:
        """All of it; what `flatten_state` takes."""
        return {
            "step": self.step,
            "first": self.first,
            "position": self.position,
            "best": None if self.best is None else float(self.best).hex(),  # JSON has no NaN
            "num_worse": self.num_worse,
            "figures": self._summed if self._meter is None else self._meter.state_dict(),
            "clock": self._clock.state_dict(),
            "rates": self._rates,
            **random_states(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next `fit` go on with the one that was saved."""
        self._run.global_step = state["step"]
        self.first, self.position = state["first"], state["position"]
        self.best = None if state["best"] is None else float.fromhex(state["best"])
        self.num_worse = state["num_worse"]
        # Older checkpoints have neither.
        self._meter, self._summed = None, state.get("figures")
        self.saved_rates = state.get("rates")
        self._clock.load_state_dict(state["clock"])
        self._random = {name: state[name] for name in RANDOM_NAMES if name in state}
        set_random_states(self._random)
