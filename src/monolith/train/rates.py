"""Learning rates of a task: what a checkpoint keeps of them, and which ones a resumed run takes."""

import copy
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from monolith.optim import Optimizer
from monolith.table.optimizers.schedules import LearningRateFunction

if TYPE_CHECKING:
    from monolith.train.task import Task


_log = logging.getLogger(__name__)

RateValue = float | str
"""A learning rate, an option of a schedule, or the name of a function."""

_SCHEDULE = "schedule"
# Of a scheduler's state: what is told as rates of groups, and private entries that are options.
_RATES, _OPTIONS = ("base_lrs", "initial_lr"), ("_schedulers", "_milestones")


class TaskRates:
    """The learning rates and the schedule that a task gives its optimizer.

    Args:
        task: gives the schedule.
        optimizer: has the learning rates that the task gave, and no scheduler yet.

    Attributes:
        scheduler: of the task; None without one.
        values: learning rates of all groups and options of the schedule, by name.
    """

    def __init__(self, task: "Task", optimizer: Optimizer) -> None:
        self._task, self._optimizer = task, optimizer
        self._given = [copy.deepcopy(group.get("lr")) for group in optimizer.param_groups]
        self.scheduler = task.schedule(optimizer)
        self.values: dict[str, RateValue] = {
            **_rates_of(optimizer),
            **dict(_options_of(self.scheduler)),
        }

    def take_over(self, saved: Mapping[str, RateValue] | None, num_steps: int) -> None:
        """After a restore: learning rates that changed since the save become those of the task.

        Each change is logged. Without a change the restored state stays as it is, also where a hook
        has set a rate. With a change a new schedule of the task makes the steps of the run.

        Args:
            saved: `values` of the run that was saved; None: an older checkpoint has none.
            num_steps: that the run has made.
        """
        ours: Mapping[str, RateValue] = self.values
        if saved is None:
            saved = _rates_of(self._optimizer)
            ours = {name: ours[name] for name in saved}
        names = dict.fromkeys([*saved, *ours])
        changed = {name for name in names if saved.get(name) != ours.get(name)}
        for name in filter(changed.__contains__, names):
            _log.warning(
                "%s: %s -> %s since the checkpoint; the task file's counts",
                name,
                saved.get(name, "none"),
                ours.get(name, "none"),
            )
        is_scheduled = any(name.startswith(_SCHEDULE) for name in {*saved, *ours})
        groups = zip(_names_of(self._optimizer), self._optimizer.param_groups, strict=True)
        for (name, group), given in zip(groups, self._given, strict=True):
            if name in changed or (changed and is_scheduled):
                group.pop("initial_lr", None)
                group["lr"] = copy.deepcopy(given)
        if changed:
            self._schedule_anew(num_steps)

    def _schedule_anew(self, num_steps: int) -> None:
        """Most schedules compute a rate from the one before: only all steps lead to the next."""
        self.scheduler = scheduler = self._task.schedule(self._optimizer)
        if scheduler is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch misses the steps of the optimizer in between
            for _ in range(num_steps):
                scheduler.step()


def _names_of(optimizer: Optimizer) -> list[str]:
    """What the learning rate of each group is called."""
    groups = optimizer.param_groups
    num_segments = Counter(group.get("table") for group in groups)
    names = []
    for number, group in enumerate(groups):
        if "table" not in group:
            name = f"group {number} of the dense parameters"
        elif num_segments[group["table"]] > 1:
            name = f"segment {group['segment']!r} of table {group['table']!r}"
        else:
            name = f"table {group['table']!r}"
        names.append(f"learning rate of {name}")
    return names


def _rates_of(optimizer: Optimizer) -> dict[str, RateValue]:
    """The learning rate of each group before a schedule changed it, by name."""
    names = _names_of(optimizer)
    own = {names[optimizer._num_dense + i]: s.optimizer for i, _, s in optimizer._schedules}
    rates: dict[str, RateValue] = {}
    for name, group in zip(names, optimizer.param_groups, strict=True):
        if name in own:
            rates[name] = _described(own[name].schedule)
        else:
            rate = _number(group.get("initial_lr", group.get("lr")))
            rates[name] = "a function" if rate is None else rate
    return rates


def _described(schedule: Any) -> str:
    """A schedule with its options; of a function the name."""
    if isinstance(schedule, LearningRateFunction):
        return str(schedule)
    return str(getattr(schedule, "__qualname__", type(schedule).__qualname__))


def _options_of(scheduler: Any) -> Iterator[tuple[str, RateValue]]:
    """The class of a scheduler, and the numbers and names that make up its schedule."""
    if scheduler is not None:
        yield _SCHEDULE, type(scheduler).__name__
        yield from _leaves(scheduler.state_dict(), _SCHEDULE)


def _leaves(state: Any, path: str) -> Iterator[tuple[str, RateValue]]:
    if isinstance(state, Mapping):
        for key, value in state.items():
            is_private = str(key).startswith("_") and key not in _OPTIONS
            if key not in _RATES and not is_private:
                yield from _leaves(value, f"{path}.{key}")
    elif isinstance(state, list | tuple):
        for place, value in enumerate(state):
            yield from _leaves(value, f"{path}.{place}")
    elif isinstance(state, str):
        yield path, state
    elif (number := _number(state)) is not None:
        yield path, number


def _number(value: Any) -> float | None:
    """A number, also one of a tensor; None of anything else and of NaN."""
    number: Any = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    return number if isinstance(number, int | float) and number == number else None
