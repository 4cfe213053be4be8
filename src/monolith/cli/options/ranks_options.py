"""Join the synchronous ranks of `monolith train --mode sync`."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from monolith.cli.console import fail
from monolith.environment import torchrun_variables
from monolith.errors import InvalidArgumentError, OpError

if TYPE_CHECKING:
    from monolith.cluster.ranks.rank_tables import RankTables

LOCAL, SYNC = "local", "sync"
"""Values of `--mode`."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class RanksOptions:
    """Options of `monolith train` for ranks.

    Args:
        mode: "local" or "sync".
        place: Number of this rank and number of ranks, as `1/4`, of `monolith launch`; None takes
            the variables of torchrun.
        rendezvous: File in which rank 0 writes its port; given with `place`.
        wait_seconds: Seconds that a rank waits for the others.
        start: Number of starts of the job before this one.
    """

    mode: str
    place: str | None
    rendezvous: str | None
    wait_seconds: float
    start: int

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, or no rank: it prints for all."""
        place = torchrun_variables().get("RANK", "0") if self.place is None else self.place
        return self.mode != SYNC or place.split("/")[0] == "0"

    @property
    def num_starts(self) -> int:
        """Number of starts of the job before this one, those of torchrun included."""
        return max(self.start, int(torchrun_variables().get("TORCHELASTIC_RESTART_COUNT", "0")))

    def refuse(self, **options: object) -> None:
        """End the program if an option does not fit ranks.

        Args:
            options: Values of the options by their names in Python; None if not given.
        """
        for name, value in options.items():
            if value not in (None, False):
                fail(f"expected no --{name.replace('_', '-')} with --mode {SYNC}, got one", 2)

    @contextlib.contextmanager
    def opened(self) -> "Iterator[RankTables | None]":
        """Join the ranks; None without `--mode sync`. Wrong options end the program."""
        if self.mode not in (LOCAL, SYNC):
            fail(f"expected --mode {LOCAL} or {SYNC}, got {self.mode!r}", status=2)
        if self.mode == LOCAL:
            yield None
            return
        from monolith.cluster.ranks.rank_group import (
            RankOptions,
            group_of_file,
            group_of_torchrun,
        )
        from monolith.cluster.ranks.rank_tables import RankTables

        options = RankOptions(wait_seconds=self.wait_seconds)
        try:
            if self.place is None or self.rendezvous is None:
                group = group_of_torchrun(options)
            else:
                rank, size = map(int, self.place.split("/"))
                group = group_of_file(self.rendezvous, rank, size, options)
        except InvalidArgumentError as error:
            fail(str(error), status=2)
        except OpError as error:
            fail(str(error))
        with group, RankTables(group) as ranks:
            yield ranks


def of_rank_0(ranks: "RankTables | None", call: Callable[[], Result]) -> Result:
    """Return the result of a call in rank 0, in all ranks; plain values travel."""
    if ranks is None:
        return call()
    result: Result = ranks.group.control.share(call() if ranks.group.rank == 0 else None)
    return result
