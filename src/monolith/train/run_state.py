"""The state of a run apart from tables and tensors: step, time, generators, source position."""

import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from monolith.data import Batch
from monolith.errors import FailedPreconditionError
from monolith.features import CutEngine
from monolith.table.calls import Clock
from monolith.train.driver import Run
from monolith.train.ranks.rank_source import trained_text
from monolith.train.rates import RateValue

if TYPE_CHECKING:
    from monolith.train.figures import Meter
    from monolith.train.online.score_windows import AllWindows


RANDOM_NAMES = ("random", "cuda_random", "python_random", "numpy_random")

RANK_STATES = "rank_states"
"""Name of the random states of ranks 1, 2, ... in the state of a run."""

_log = logging.getLogger(__name__)


def seed_all(seed: int) -> None:
    """Seed the generators of torch, Python and numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def position_of(batches: Iterator[Batch]) -> Any:
    """Return the source position of the next batch, `state_dict()` of the iterator, or None."""
    state_dict = getattr(batches, "state_dict", None)
    return None if state_dict is None else state_dict()


def random_states() -> dict[str, Any]:
    """Return the states of all random generators by `RANDOM_NAMES`, for `flatten_state`."""
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    return {
        "random": torch.get_rng_state(),
        "cuda_random": _cuda_states(),
        "python_random": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy_random": {**numpy, "state": _tensors(numpy["state"])},
    }


def torch_states() -> dict[str, Any]:
    """Return the states of torch's generators, for `set_random_states`."""
    return {"random": torch.get_rng_state(), "cuda_random": _cuda_states()}


def set_random_states(states: dict[str, Any]) -> None:
    """Set the states of all random generators; older checkpoints have only that of torch."""
    torch.set_rng_state(states["random"])
    _set_cuda_states(states.get("cuda_random", []))
    if python := states.get("python_random"):
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    if numpy := states.get("numpy_random"):
        np.random.set_state({**numpy, "state": _arrays(numpy["state"])})


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(value.astype(np.int64)) if isinstance(value, np.ndarray) else value
        for name, value in state.items()
    }


def _arrays(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.numpy().astype(np.uint32) if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


def _cuda_states() -> list[torch.Tensor]:
    """Return the generator state of each CUDA device; empty if this process does not use CUDA."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if is_used else []


def _set_cuda_states(states: list[torch.Tensor]) -> None:
    """Set the generator of each saved CUDA device; warn about devices that are missing here."""
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


@contextlib.contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Set torch's number of threads until the block ends; None changes nothing."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        if number is not None:
            torch.set_num_threads(before)


class BufferCopies:
    """Copies of the buffers of a model, which `restore` sets back. A lazy buffer has no copy.

    Every buffer is copied each time, because layers such as `BatchNorm1d` change a buffer without a
    change of its version.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        modules = model.modules()
        self._modules = [m for m in modules if any(True for _ in m.buffers(recurse=False))]
        self._copies: dict[tuple[torch.nn.Module, str], _BufferCopy] = {}

    def update(self) -> None:
        """Copy all buffers, into the memory of earlier copies."""
        for module in self._modules:
            for name, buffer in module.named_buffers(recurse=False):
                if not torch.nn.parameter.is_lazy(buffer):
                    copy = self._copies.get((module, name))
                    if copy is None or copy.buffer is not buffer:
                        self._copies[module, name] = _BufferCopy(buffer, buffer.detach().clone())
                    else:
                        copy.value.copy_(buffer.detach())

    def restore(self) -> None:
        """Set the buffers back to their copies."""
        with torch.no_grad():
            for (module, name), copy in self._copies.items():
                setattr(module, name, copy.buffer.copy_(copy.value))


class _BufferCopy(NamedTuple):
    buffer: torch.Tensor
    value: torch.Tensor


class _DenseCopy(NamedTuple):
    """A parameter or buffer of a module, and its copy."""

    module: torch.nn.Module
    name: str
    original: torch.Tensor
    value: torch.Tensor


class DenseCopies:
    """Copies of the parameters and buffers of a model, made by the constructor.

    A tensor that several modules share has one copy. Lazy tensors, which have no values yet, are
    left as they are.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        values: dict[int, torch.Tensor] = {}
        self._copies = []
        for module in model.modules():
            for named in (module.named_parameters, module.named_buffers):
                for name, tensor in named(recurse=False, remove_duplicate=False):
                    if torch.nn.parameter.is_lazy(tensor):
                        continue
                    if id(tensor) not in values:
                        values[id(tensor)] = _copy_of(tensor)
                    self._copies.append(_DenseCopy(module, name, tensor, values[id(tensor)]))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the copies into the model until the block ends; the originals may change meanwhile.

        The original tensors are back after the block, with whatever others wrote to them.
        """
        try:
            for module, name, _, value in self._copies:
                setattr(module, name, value)
            yield
        finally:
            for module, name, original, _ in self._copies:
                setattr(module, name, original)


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    value = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(value, requires_grad=tensor.requires_grad)
    return value


class EvaluationCut(NamedTuple):
    """The tables and dense tensors of a trainer at one moment.

    Attributes:
        dense: Copies of the parameters and buffers.
        engine: Engine that reads cuts of the tables; the owner closes it.
    """

    dense: DenseCopies
    engine: CutEngine


_FUTURE_SECONDS = 3600  # the most that events may be ahead of the clock, as in a table


class StepClock:
    """The clock of the tables: the time of the step whose update is applied.

    Args:
        clock: Clock that returns seconds since 1970, for samples without a time.

    Attributes:
        num_clamped: Number of steps with samples more than an hour ahead of the clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time: int | None = None
        self.num_clamped = 0

    def __call__(self) -> int:
        """Return the time of the step; before the first step, the time of the clock."""
        return self._clock() if self._time is None else self._time

    def state_dict(self) -> dict[str, Any]:
        """Return the time of the last step, and `num_clamped`."""
        return {"time": self._time, "num_clamped": self.num_clamped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the time of the last step, and `num_clamped`."""
        self._time, self.num_clamped = state["time"], state["num_clamped"]

    def now(self) -> int:
        """Return the time of the clock."""
        return self._clock()

    def begin_at(self, now: int) -> None:
        """Set the time before the first step; a time that a step or a restore has set stays."""
        self._time = now if self._time is None else self._time

    def set(self, batches: Iterable[Batch]) -> None:
        """Set the time of the next update: the latest time of the step's samples."""
        times = [int(b.time.max()) for b in batches if b.time is not None and len(b.time)]
        self.set_times(times, self._clock())

    def set_times(self, times: Sequence[int], now: int) -> None:
        """Set the time of the next update.

        Args:
            times: Times of the step's samples; the latest one counts.
            now: Time of the clock, for samples without a time.
        """
        self._time = min(max(times), now + _FUTURE_SECONDS) if times else now
        self.num_clamped += bool(times) and max(times) > self._time


class RunState:
    """The state of the running or last `fit`, as a checkpoint stores it.

    Args:
        run: Run whose `global_step` counts the steps.
        clock: Clock of the updates.
        rates: Learning rates of the task by name.

    Attributes:
        rates: The learning rates.
        rank: Number of this process among the ranks of a job; 0 without ranks.
        joint: Function that returns the parts of the state that are those of all ranks; None
            without ranks.
        first: Global step at which the `fit` began; `TrainSettings.steps` counts from there.
        position: Source position after the last trained batch; None if the source has none.
        best: Best figure of the evaluations for the early stop; None before the first evaluation.
        num_worse: Number of evaluations since the best one.
        num_samples: Number of samples that the `fit` has trained.
        num_before: Number of samples that were trained before the `fit` by the run with which it
            goes on; None if an older checkpoint does not say.
        is_torn: Whether an update began and did not end, so that only a restore makes the state
            whole.
        saved_rates: Learning rates of the task when the restored checkpoint was saved; None without
            a restore, or for an older checkpoint.
    """

    def __init__(self, run: Run, clock: StepClock, rates: Mapping[str, RateValue]) -> None:
        self._run, self._clock, self.rates = run, clock, rates
        self.saved_rates: Mapping[str, RateValue] | None = None
        self.rank = 0
        self.joint: Callable[[], Mapping[str, Any]] | None = None
        self.first = 0
        self.position: Any = None
        self.best: float | None = None
        self.num_worse = 0
        self.num_samples = 0
        self.num_before: int | None = 0
        self.is_torn = False
        self._checkpoint: tuple[str, int] | None = None  # of this `fit`, and its num_samples
        self._meter: Meter | None = None
        self._windows: AllWindows | None = None  # of progressive scores
        self._window_state: Any = None  # restored
        self._sums: Any = None  # restored state of a meter
        self._random: dict[str, Any] | None = None  # restored state of the generators

    @property
    def step(self) -> int:
        """Global step of the run."""
        return self._run.global_step or 0

    @property
    def is_restored(self) -> bool:
        """Whether the next `fit` goes on with a checkpoint."""
        return self._random is not None

    def begin(self, source: Iterable[Batch]) -> Iterator[Batch]:
        """Return an iterator over the source of a `fit`.

        After a restore, the iterator begins after the last trained batch.
        """
        random, self._random = self._random, None
        self.num_samples = 0
        prefix = None if random is None else self.checkpoint
        self._checkpoint = None if prefix is None else (prefix, 0)
        batches = self._iterate(source, is_restored=random is not None)
        if random is not None:
            # The source may have drawn numbers, as in the run that was saved.
            set_random_states(random)
        return batches

    def _iterate(self, source: Iterable[Batch], *, is_restored: bool) -> Iterator[Batch]:
        if not is_restored:
            self.first, self.best, self.num_worse = self.step, None, 0
            self._sums, self._window_state, self.num_before = None, None, 0
        elif self.position is not None and hasattr(source, "resume"):
            batches: Iterator[Batch] = source.resume(self.position)
            return batches
        elif self.step > self.first and not getattr(source, "knows_positions", False):
            _log.warning(
                "the source %s has no position in the checkpoint, or no resume; it is read from "
                "where it is, and if that is its beginning, %s that were trained before are "
                "trained once more",
                type(source).__name__,
                trained_text(self.num_before),
            )
        return iter(source)

    def begin_anew(self) -> None:
        """Let the next `fit` after a restore be a new run, over its source from the beginning.

        Tables, parameters, optimizer and step stay as they were restored.
        """
        self._random, self._sums, self._window_state, self.position = None, None, None, None

    def watch(self, meter: "Meter", windows: "AllWindows | None" = None) -> None:
        """Include the sums of a `fit` in the state; after a restore, load those that were saved.

        Args:
            meter: Sums since the last report.
            windows: Windows of progressive scores; None without them.
        """
        self._meter, self._windows = meter, windows
        if self._sums is not None:
            meter.load_state_dict(self._sums)
        if windows is not None and self._window_state is not None:
            windows.load_state_dict(self._window_state)

    @property
    def checkpoint(self) -> str | None:
        """Prefix of the newest complete checkpoint of this `fit`, saved or restored before it."""
        return None if self._checkpoint is None else self._checkpoint[0]

    def note_checkpoint(self, prefix: str) -> None:
        """Note that a checkpoint has the state as it is now."""
        self._checkpoint = (prefix, self.num_samples)

    def note_save(self, prefix: str, num_samples: int) -> None:
        """Note that a checkpoint of this `fit` is complete, unless a newer one is noted.

        Args:
            prefix: Prefix of the checkpoint.
            num_samples: Value of `num_samples` at the cut of the checkpoint.
        """
        if self._checkpoint is None or num_samples >= self._checkpoint[1]:
            self._checkpoint = (prefix, num_samples)

    def resume(self, source: Any) -> Iterator[Batch]:
        """Return an iterator over a source of the running `fit`, after the checkpoint is restored.

        Raises:
            FailedPreconditionError: The source cannot be read from the position.
        """
        is_start = self.position is None and self.step == self.first
        if not hasattr(source, "resume") or (self.position is None and not is_start):
            raise FailedPreconditionError(
                f"[Trainer.fit] expected a source with resume, to go on after an AbortedError, got "
                f"a {type(source).__name__}; use a Pipeline, or restore in a new process"
            )
        assert self._checkpoint is not None
        checkpoint = self._checkpoint
        batches = self.begin(source)
        self._checkpoint, self.num_samples = checkpoint, checkpoint[1]
        if self.num_before is not None:
            self.num_before -= self.num_samples  # of this `fit`
        return batches

    def check_whole(self, where: str) -> None:
        """Refuse a state that an update has torn.

        Raises:
            FailedPreconditionError: An update began and did not end.
        """
        if self.is_torn:
            raise FailedPreconditionError(
                f"{where} expected a state of whole steps, got one after an update that began and "
                f"did not end (step {self.step}); restore a checkpoint first"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the `fit`, for `flatten_state`."""
        return {
            "step": self.step,
            "first": self.first,
            "position": self.position,
            "best": None if self.best is None else float(self.best).hex(),  # JSON has no NaN
            "num_worse": self.num_worse,
            "samples": self.num_trained,
            "figures": self.figures_state(),
            "windows": self._windows_state(),
            "clock": self._clock.state_dict(),
            "rates": self.rates,
            **random_states(),
            **({} if self.joint is None else self.joint()),
        }

    @property
    def num_trained(self) -> int | None:
        """Number of samples of the whole run; None if an older checkpoint does not say."""
        return None if self.num_before is None else self.num_before + self.num_samples

    def figures_state(self) -> Any:
        """Return the sums of the meter since the last report."""
        return self._sums if self._meter is None else self._meter.state_dict()

    def _windows_state(self) -> Any:
        if self._windows is not None:
            return self._windows.state_dict()
        return self._window_state if self._meter is None else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the state, so that the next `fit` goes on with the saved one."""
        self._run.global_step = state["step"]
        self.first, self.position = state["first"], state["position"]
        self.best = None if state["best"] is None else float.fromhex(state["best"])
        self.num_worse = state["num_worse"]
        self.num_samples, self.num_before = 0, state.get("samples")
        self.is_torn = False
        # Older checkpoints have no figures and no rates.
        self._meter, self._sums = None, None if self.rank else state.get("figures")
        self._windows, self._window_state = None, state.get("windows")
        self.saved_rates = state.get("rates")
        self._clock.load_state_dict(state["clock"])
        others = state.get(RANK_STATES, [])
        own = others[self.rank - 1] if 0 < self.rank <= len(others) else state
        self._random = {name: own[name] for name in RANDOM_NAMES if name in own}
        set_random_states(self._random)
