"""The state of a run beside tables and tensors: step, time, random generators, data position."""

import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith.data import Batch
from monolith.table.calls import Clock
from monolith.train.driver import Run
from monolith.train.rates import RateValue

if TYPE_CHECKING:
    from monolith.train.figures import Meter


RANDOM_NAMES = ("random", "cuda_random", "python_random", "numpy_random")

_log = logging.getLogger(__name__)


def seed_all(seed: int) -> None:
    """Seed all of them."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def random_states() -> dict[str, Any]:
    """Their states, by the names of `RANDOM_NAMES`; what `flatten_state` takes."""
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    return {
        "random": torch.get_rng_state(),
        "cuda_random": _cuda_states(),
        "python_random": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy_random": {**numpy, "state": _tensors(numpy["state"])},
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Let all of them go on as they were; older checkpoints have torch's alone."""
    torch.set_rng_state(states["random"])
    _set_cuda_states(states.get("cuda_random", []))
    if python := states.get("python_random"):
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    if numpy := states.get("numpy_random"):
        np.random.set_state({**numpy, "state": _arrays(numpy["state"])})


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(each.astype(np.int64)) if isinstance(each, np.ndarray) else each
        for name, each in state.items()
    }


def _arrays(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: each.numpy().astype(np.uint32) if isinstance(each, torch.Tensor) else each
        for name, each in state.items()
    }


def _cuda_states() -> list[torch.Tensor]:
    """Of the generators of all CUDA devices; none where this process does not use CUDA."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if is_used else []


def _set_cuda_states(states: list[torch.Tensor]) -> None:
    """Set the generator of each device that was saved; of devices that are not here, nothing."""
    num_devices = torch.cuda.device_count() if states else 0
    for device, state in enumerate(states[:num_devices]):
        torch.cuda.set_rng_state(state, device)
    if len(states) > num_devices:
        _log.warning(
            "the checkpoint has random states of %d CUDA devices, %d are here; what the others "
            "would draw is lost",
            len(states),
            num_devices,
        )


_FUTURE_SECONDS = 3600  # events may be ahead of the clock by so much, as in a table


class StepClock:
    """Gives the tables the time of the step that is applied.

    Args:
        clock: gives seconds since 1970 for samples without a time.

    Attributes:
        num_clamped: steps whose samples were more than an hour ahead of the clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time: int | None = None
        self.num_clamped = 0

    def __call__(self) -> int:
        """Time of the step; of the clock before the first one."""
        return self._clock() if self._time is None else self._time

    def state_dict(self) -> dict[str, Any]:
        """The time of the last step, and the count."""
        return {"time": self._time, "num_clamped": self.num_clamped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._time, self.num_clamped = state["time"], state["num_clamped"]

    def set(self, batches: Iterable[Batch]) -> None:
        """Begin the update of a step: its time is the latest of its samples."""
        times = [int(b.time.max()) for b in batches if b.time is not None and len(b.time)]
        now = self._clock()
        self._time = min(max(times), now + _FUTURE_SECONDS) if times else now
        self.num_clamped += bool(times) and max(times) > self._time


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
