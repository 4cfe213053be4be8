"""Learning rates of many tables: by name, so that two tables cannot take each other's."""

from collections.abc import Callable, Mapping, Sequence

from monolith.embedding import checks
from monolith.embedding.config import TableConfig, segments_of
from monolith.embedding.per_segment import PerSegment

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
        # Of each schedule, the tables that follow it, and the number of the segment in each.
        owners = [(c, i) for c in configs for i in range(len(segments_of(c)))]
        self._users = [[owners[place] for place in users] for users in self._own.users]
        self.num_rates = len(schedules)

    def at(
        self, step: int, learning_rates: Mapping[str, Sequence[float]] | None = None
    ) -> list[float]:
        """The tables' own rates, but for those that are given."""
        given = {} if learning_rates is None else self._checked(learning_rates)
        scheduled = self._own.scheduled(step)
        for i, users in enumerate(self._users):
            # Fixed rates were checked when their optimizers were made.
            user = next((each for each in users if each[0].name not in given), None)
            if user is not None:
                scheduled[i] = checks.check_rate(*user, scheduled[i])
        rates = self._own.placed(scheduled)
        for name, own in given.items():
            config, first, end = self._places[name]
            rates[first:end] = checks.check_rates(config, "apply_gradients", step, own)
        return rates

    def _checked(
        self, learning_rates: Mapping[str, Sequence[float]]
    ) -> Mapping[str, Sequence[float]]:
        """Refuse what is no mapping, and names of other tables."""
        where = f"[{self._owner}.apply_gradients]"
        if not isinstance(learning_rates, Mapping):
            raise TypeError(
                f"{where} expected learning_rates as a mapping by table name, got "
                f"{type(learning_rates).__name__}"
            )
        unknown = sorted(name for name in learning_rates if name not in self._places)
        if unknown:
            raise ValueError(
                f"{where} expected learning rates of the tables, got some of "
                f"{', '.join(unknown)}; the tables are {', '.join(self._places)}"
            )
        return learning_rates
