"""Compare the learning rates of a task with those of a checkpoint when a run is resumed."""

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
# Entries of a scheduler's state: rates of groups, which have names of their own; private options.
_RATES, _OPTIONS = ("base_lrs", "initial_lr"), ("_schedulers", "_milestones")


class TaskRates:
    """The learning rates and the schedule that a task sets for its optimizer.

    Args:
        task: Task that makes the schedule.
        optimizer: Optimizer with the learning rates of the task and without a scheduler.

    Attributes:
        scheduler: Schedule of the task; None without a schedule.
        values: Learning rates of all groups and options of the schedule, by name.
    """

    def __init__(self, task: "Task", optimizer: Optimizer) -> None:
        self._task, self._optimizer = task, optimizer
        self._task_rates = [copy.deepcopy(group.get("lr")) for group in optimizer.param_groups]
        self.scheduler = task.schedule(optimizer)
        self.values: dict[str, RateValue] = {
            **_rates_of(optimizer),
            **dict(_options_of(self.scheduler)),
        }

    def take_over(self, saved: Mapping[str, RateValue] | None, num_steps: int) -> None:
        """Replace restored learning rates that the task has changed since the checkpoint.

        Each change is logged. Without a change the restored state stays as it is, also if a hook
        has set a rate. With a change, a new schedule of the task makes all steps of the run.

        Args:
            saved: `values` of the run that was saved; None for an older checkpoint without them.
            num_steps: Number of steps that the run has made.
        """
        values: Mapping[str, RateValue] = self.values
        if saved is None:
            saved = _rates_of(self._optimizer)
            values = {name: values[name] for name in saved}
        names = dict.fromkeys([*saved, *values])
        changes = {name for name in names if saved.get(name) != values.get(name)}
        for name in filter(changes.__contains__, names):
            _log.warning(
                "%s: %s -> %s since the checkpoint; the task file's counts",
                name,
                saved.get(name, "none"),
                values.get(name, "none"),
            )
        is_scheduled = any(name.startswith(_SCHEDULE) for name in {*saved, *values})
        groups = zip(_names_of(self._optimizer), self._optimizer.param_groups, strict=True)
        for (name, group), rate in zip(groups, self._task_rates, strict=True):
            if name in changes or (changes and is_scheduled):
                group.pop("initial_lr", None)
                group["lr"] = copy.deepcopy(rate)
        if changes:
            self._restart_schedule(num_steps)

    def _restart_schedule(self, num_steps: int) -> None:
        self.scheduler = scheduler = self._task.schedule(self._optimizer)
        if scheduler is None:
            return
        with warnings.catch_warnings():
            # torch warns about scheduler steps without steps of the optimizer.
            warnings.simplefilter("ignore")
            for _ in range(num_steps):  # most schedules compute a rate from the one before
                scheduler.step()


def _names_of(optimizer: Optimizer) -> list[str]:
    """Return a name for the learning rate of each group."""
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


def rename_tables(
    rates: Mapping[str, RateValue] | None, names: Mapping[str, str]
) -> Mapping[str, RateValue] | None:
    """Return learning rates by name with the tables' new names.

    Args:
        rates: `TaskRates.values`, or None.
        names: old name -> new name of a table.
    """
    if rates is None or not names:
        return rates
    endings = {f"table {old!r}": f"table {new!r}" for old, new in names.items()}
    renamed = {}
    for name, rate in rates.items():
        ending = next((old for old in endings if name.endswith(f" {old}")), None)
        renamed[name.removesuffix(ending) + endings[ending] if ending else name] = rate
    return renamed


def _rates_of(optimizer: Optimizer) -> dict[str, RateValue]:
    """Return the learning rate of each group before a schedule changed it, by name."""
    names = _names_of(optimizer)
    segments = {names[optimizer._num_dense + i]: s for i, _, s in optimizer._schedules}
    rates: dict[str, RateValue] = {}
    for name, group in zip(names, optimizer.param_groups, strict=True):
        if name in segments:
            rates[name] = _describe(segments[name].optimizer.schedule)
        else:
            rate = _number(group.get("initial_lr", group.get("lr")))
            rates[name] = "a function" if rate is None else rate
    return rates


def _describe(schedule: Any) -> str:
    """Return a schedule with its options as text; a function as its name."""
    if isinstance(schedule, LearningRateFunction):
        return str(schedule)
    return str(getattr(schedule, "__qualname__", type(schedule).__qualname__))


def _options_of(scheduler: Any) -> Iterator[tuple[str, RateValue]]:
    """Yield the class of a scheduler, and the numbers and texts among its options, with names."""
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
    """Return a number, or the number in a tensor of one element; None for NaN and other values."""
    number: Any = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    return number if isinstance(number, int | float) and number == number else None
