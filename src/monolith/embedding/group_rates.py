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
        self.num_rates = len(schedules)

    def at(
        self, step: int, learning_rates: Mapping[str, Sequence[float]] | None = None
    ) -> list[float]:
        """The tables' own rates, but for those that are given; not to be changed."""
        rates = self._own.at(step)
        if learning_rates is None:
            return rates
        unknown = sorted(set(learning_rates) - set(self._places))
        if unknown:
            raise ValueError(
                f"[{self._owner}.apply_gradients] expected learning rates of the tables, got some "
                f"of {', '.join(unknown)}; the tables are {', '.join(self._places)}"
            )
        rates = list(rates)
        for name, given in learning_rates.items():
            config, first, end = self._places[name]
            rates[first:end] = checks.check_rates(config, "apply_gradients", step, given)
        return rates
