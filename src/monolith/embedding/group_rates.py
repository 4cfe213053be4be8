"""Learning rates of many tables: by name, so that two tables cannot take each other's."""

from collections.abc import Callable, Mapping, Sequence

from monolith.embedding import checks
from monolith.embedding.config import TableConfig, segments_of
from monolith.embedding.group_storage import PerSegment

__all__ = ["GroupRates"]


class GroupRates:
    """The rate of every segment of some tables at a step; one flat list, in the order given.

    Args:
        configs: of the tables.
        owner: whose rates these are, for messages.
    """

    def __init__(self, configs: Sequence[TableConfig], owner: str = "TableGroup") -> None:
        self._owner = owner
        self._places: dict[str, tuple[TableConfig, int, int]] = {}
        schedules: list[float | Callable[[int], float]] = []
        for config in configs:
            first = len(schedules)
            schedules += [segment.optimizer.schedule for segment in segments_of(config)]
            self._places[config.name] = (config, first, len(schedules))
        self._own = PerSegment(schedules)
        # Fixed rates were checked when their optimizers were made.
        self._moving = [
            name
            for name, (_, first, end) in self._places.items()
            if any(map(callable, schedules[first:end]))
        ]
        self.num_rates = len(schedules)

    def at(
        self, step: int, learning_rates: Mapping[str, Sequence[float]] | None = None
    ) -> list[float]:
        """The tables' own rates, but for those that are given; not to be changed."""
        rates = self._own.at(step)
        if learning_rates is None:
            return self._with_checked_schedules(rates, step, self._moving)
        if not isinstance(learning_rates, Mapping):
            raise TypeError(
                f"[{self._owner}.apply_gradients] expected learning_rates as a mapping by table "
                f"name, got {type(learning_rates).__name__}"
            )
        unknown = sorted(set(learning_rates) - set(self._places))
        if unknown:
            raise ValueError(
                f"[{self._owner}.apply_gradients] expected learning rates of the tables, got some "
                f"of {', '.join(unknown)}; the tables are {', '.join(self._places)}"
            )
        own = [name for name in self._moving if name not in learning_rates]
        rates = list(self._with_checked_schedules(rates, step, own))
        for name, given in learning_rates.items():
            config, first, end = self._places[name]
            rates[first:end] = checks.check_rates(config, "apply_gradients", step, given)
        return rates

    def _with_checked_schedules(
        self, rates: list[float], step: int, names: list[str]
    ) -> list[float]:
        """The rates, with those of tables that follow the step checked as `Table` checks them."""
        for name in names:  # then the list is a new one
            config, first, end = self._places[name]
            own = rates[first:end]
            rates[first:end] = checks.check_rates(config, "apply_gradients", step, own)
        return rates
