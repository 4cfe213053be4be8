"""Numbers of the segments of many tables, of which some follow the step."""

from collections.abc import Callable, Hashable, Sequence

__all__ = ["PerSegment"]


class PerSegment:
    """A number for each segment of some tables: most are fixed, some follow the step.

    A schedule that several segments have is asked once; equal ones are one (`schedules.py`).

    Attributes:
        users: of each different schedule, the segments that have it.

    Example:
        >>> double = lambda step: 2.0 * step
        >>> numbers = PerSegment([0.5, double, double])
        >>> numbers.at(3), numbers.users
        ([0.5, 6.0, 6.0], [[1, 2]])
    """

    def __init__(self, numbers: Sequence[float | Callable[[int], float]]) -> None:
        self._schedules: list[Callable[[int], float]] = []
        self.users: list[list[int]] = []
        fixed: list[float] = []
        known: dict[Hashable, int] = {}
        places = []
        for i, number in enumerate(numbers):
            if callable(number):
                place = known.setdefault(_identity(number), len(self._schedules))
                if place == len(self._schedules):
                    self._schedules.append(number)
                    self.users.append([])
                self.users[place].append(i)
                places.append(place)
            else:
                fixed.append(float(number))
                places.append(-len(fixed))
        self._fixed = fixed[::-1]
        self._places = places  # of each segment: a schedule, or a fixed number from the end

    def at(self, step: int) -> list[float]:
        """The numbers at a step."""
        return self.placed(self.scheduled(step))

    def scheduled(self, step: int) -> list[float]:
        """What each different schedule says."""
        return [schedule(step) for schedule in self._schedules]

    def placed(self, scheduled: list[float]) -> list[float]:
        """The numbers of all segments, where the schedules say this; a new list."""
        if not scheduled:
            return self._fixed[::-1]
        return list(map((scheduled + self._fixed).__getitem__, self._places))


def _identity(schedule: Callable[[int], float]) -> Hashable:
    """Equal ones are one schedule; one without a hash is itself alone."""
    try:
        hash(schedule)
    except TypeError:
        return id(schedule)
    return schedule
