"""`RankGroup`: the ranks of a job, which find each other, and their channels."""

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from monolith.cluster.job.job_values import first_difference
from monolith.cluster.ranks.channel import CardChannel, Channel, lost_text
from monolith.cluster.ranks.rank_watch import RankWatch
from monolith.environment import torchrun_variables
from monolith.errors import InvalidArgumentError, OpError, UnavailableError

if TYPE_CHECKING:
    from typing_extensions import Self

START_SECONDS = 600.0
"""Default number of seconds that ranks wait for each other at the start."""
WAIT_SECONDS = 300.0
"""Default number of seconds that a rank waits for the others in a collective."""

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class RankOptions:
    """How the ranks wait for each other.

    Args:
        start_seconds: longest wait for all ranks at the start.
        wait_seconds: longest wait for the others in a collective, such as for a slow source.
    """

    start_seconds: float = START_SECONDS
    wait_seconds: float = WAIT_SECONDS


class RankGroup:
    """One of the ranks of a job. Close it.

    Collectives of different threads never meet, because each thread has a channel of its own.

    Args:
        store: store that all ranks reach.
        rank: number of this rank.
        size: number of ranks.
        options: how to wait; None takes the defaults.
        is_host: whether the store ends with this process.

    Attributes:
        rank: number of this rank.
        size: number of ranks.
        lookups: channel of the keys and rows of lookups, which a thread may read ahead.
        gradients: channel of the gradients of tables, which a thread may push.
        dense: channel of the gradients of dense parameters.
        control: channel of facts, states and figures, used by the training thread.

    Raises:
        InvalidArgumentError: the number of the rank is not one of the job.
        UnavailableError: not all ranks came in time.

    Example:
        >>> with RankGroup(dist.HashStore(), 0, 1) as group:
        ...     group.control.gather("here")
        ['here']
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        options: RankOptions | None = None,
        *,
        is_host: bool = False,
    ) -> None:
        if not 0 <= rank < size:
            raise InvalidArgumentError(
                f"[RankGroup] expected a rank in [0, {size}), got {rank}; start all ranks with "
                "the same number of ranks"
            )
        self.rank, self.size = rank, size
        self._options = options or RankOptions()
        self._store, self._watch = store, None
        if size > 1:
            self._await_all()
            self._watch = RankWatch(store, rank, size, is_host=is_host)
        self.lookups, self.gradients = self._channel("lookups"), self._channel("gradients")
        self.dense, self.control = self._channel("dense"), self._channel("control", is_patient=True)
        self.control.gather(None)

    def _await_all(self) -> None:
        """Wait until every rank has come to the store, and refuse two ranks of one number."""
        who = f"{os.uname().nodename} process {os.getpid()}"
        try:
            first = self._store.compare_set(f"rank/{self.rank}", "", who).decode()
            if first != who:
                raise InvalidArgumentError(
                    f"[RankGroup] expected one rank {self.rank}, got two: {first}, and {who}; "
                    "give each rank a number of its own"
                )
            end = time.monotonic() + self._options.start_seconds
            while missing := self._missing():
                if time.monotonic() > end:
                    raise UnavailableError(
                        f"[RankGroup] expected {self.size} ranks within "
                        f"{self._options.start_seconds:g} s, got none of "
                        f"{', '.join(map(str, missing))} (rank {self.rank}); start all ranks"
                    )
                time.sleep(_POLL_SECONDS)
        except dist.DistError as error:
            raise UnavailableError(
                f"[RankGroup] expected the store of the ranks, got {error} (rank {self.rank})"
            ) from error

    def _missing(self) -> list[int]:
        return [r for r in range(self.size) if not self._store.check([f"rank/{r}"])]

    def use_cards(self, device: torch.device) -> None:
        """Let dense gradients go from card to card, if each rank has a card of its own.

        Otherwise they go through main memory, as before. All ranks call it.

        Args:
            device: device of this rank's dense gradients.
        """
        cards = self.control.gather(_card_of(device))
        if self.size > 1 and None not in cards and len(set(cards)) == self.size:
            self.dense = self._channel("cards", is_on_cards=True)

    def _channel(
        self, name: str, *, is_patient: bool = False, is_on_cards: bool = False
    ) -> Channel:
        place, wait_seconds = (self.rank, self.size), self._options.wait_seconds
        kind = CardChannel if is_on_cards else Channel
        backend: Any = None
        if self.size > 1:
            # Its own limit is longer: the waits of the channel end first, and name the rank.
            limit = datetime.timedelta(seconds=2 * max(wait_seconds, self._options.start_seconds))
            store = PrefixStore(f"channel/{name}", self._store)
            make = group_of_cards if is_on_cards else dist.ProcessGroupGloo
            try:
                backend = make(store, self.rank, self.size, limit)
            except RuntimeError as error:
                raise UnavailableError(
                    f"[RankGroup] expected a connection to all {self.size} ranks, got {error} "
                    f"(rank {self.rank})"
                ) from error
        return kind(name, backend, self._watch, place, wait_seconds, is_patient=is_patient)

    @property
    def wait_seconds(self) -> float:
        """Longest wait for the other ranks."""
        return self._options.wait_seconds

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All channels."""
        return self.lookups, self.gradients, self.dense, self.control

    def check_equal(self, facts: Mapping[str, list[str]]) -> None:
        """Refuse ranks whose facts differ, in all ranks.

        Args:
            facts: lines of text by name.

        Raises:
            InvalidArgumentError: a rank has another line than rank 0.
        """
        first, *others = self.control.gather(dict(facts))
        for rank, theirs in enumerate(others, 1):
            difference = first_difference(first, theirs)
            if difference is not None:
                raise InvalidArgumentError(
                    f"[RankGroup] expected the same task and settings in all ranks, got "
                    f"{difference[0]!r} in rank 0 and {difference[1]!r} in rank {rank}; start all "
                    "ranks with the same task, data and settings"
                )

    def fail(self, error: BaseException) -> None:
        """Tell all ranks that this one fails, and end its waits.

        An error of another rank is known to all already.
        """
        if self._watch is not None and self._watch.reason is None:
            self._watch.tell(f"rank {self.rank} failed: {type(error).__name__}: {error}")
        self.cancel()

    def on_failure(self, call: Callable[[], object]) -> None:
        """Call a function, on a thread, as soon as it is known that a rank has failed.

        Args:
            call: Takes the place of a function before it.
        """
        if self._watch is not None:
            self._watch.on_failure = call

    def explain(self, error: BaseException) -> BaseException:
        """Return why the ranks end, if an error came after the failure of another rank."""
        reason = None if self._watch is None else self._watch.reason
        if reason is None or reason.startswith(f"rank {self.rank} failed:"):
            return error
        is_same = reason in str(error) or str(error) in reason  # which all ranks have met
        if is_same or not isinstance(error, OpError):
            return error
        return UnavailableError(lost_text(reason, self.rank, self.size))

    def cancel(self) -> None:
        """End all waits of this rank for others."""
        for channel in self.channels:
            channel.cancel()

    @property
    def has_failed(self) -> bool:
        """Whether a rank has failed."""
        return self._watch is not None and self._watch.reason is not None

    def close(self) -> None:
        """End the signs of life. Closing twice is fine."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(error)
        self.close()


def group_of_cards(store: Store, rank: int, size: int, limit: datetime.timedelta) -> Any:
    """Return the process group of nccl; its arguments are those of gloo's."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    return dist.ProcessGroupNCCL(store, rank, size, options)


def _card_of(device: torch.device) -> str | None:
    """Return what tells a card from all others; None for other devices, and without nccl."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def group_of_torchrun(options: RankOptions | None = None) -> RankGroup:
    """Return the rank that torchrun has started, by the variables that it sets.

    Raises:
        InvalidArgumentError: the variables are missing.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    known = torchrun_variables()
    missing = [name for name in names if name not in known]
    if missing:
        raise InvalidArgumentError(
            f"[RankGroup] expected the variables of torchrun, got no {', '.join(missing)}; start "
            "it with: torchrun --nproc-per-node N -m monolith train TASK --mode sync, or monolith "
            "launch TASK --ranks N"
        )
    options = options or RankOptions()
    rank, size = int(known["RANK"]), int(known["WORLD_SIZE"])
    has_agent = known.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            known["MASTER_ADDR"],
            int(known["MASTER_PORT"]),
            is_master=rank == 0 and not has_agent,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=options.start_seconds),
        )
    except (RuntimeError, ValueError) as error:
        raise UnavailableError(
            f"[RankGroup] expected the store of the ranks at {known['MASTER_ADDR']}:"
            f"{known['MASTER_PORT']}, got {error} (rank {rank}); choose another --master-port"
        ) from error
    start = known.get("TORCHELASTIC_RESTART_COUNT", "0")
    return RankGroup(
        PrefixStore(f"monolith/{start}", store),
        rank,
        size,
        options,
        is_host=rank == 0 and not has_agent,
    )


def group_of_file(path: str, rank: int, size: int, options: RankOptions | None = None) -> RankGroup:
    """Return a rank of a job on one machine, whose rank 0 writes its port to a file.

    Args:
        path: file in a folder that all ranks see; new for each start of the job.
        rank: number of this rank.
        size: number of ranks.
        options: how to wait.

    Raises:
        UnavailableError: rank 0 did not come in time, or is gone.
    """
    options = options or RankOptions()
    limit = datetime.timedelta(seconds=options.start_seconds)
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
        part = f"{path}.part"
        with open(part, "w", encoding="utf-8") as file:
            file.write(str(store.port))
        os.replace(part, path)
    else:
        port = _port_of(path, rank, options.start_seconds)
        try:
            store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
        except RuntimeError as error:
            raise UnavailableError(
                f"[RankGroup] expected the store of the ranks at port {port}, which rank 0 wrote "
                f"to {path}, got {error} (rank {rank}); start all ranks again"
            ) from error
    return RankGroup(store, rank, size, options, is_host=rank == 0)


def _port_of(path: str, rank: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
            return int(file.read())
        time.sleep(_POLL_SECONDS)
    raise UnavailableError(
        f"[RankGroup] expected rank 0 to write its port to {path} within {seconds:g} s, got none "
        f"(rank {rank}); start all ranks"
    )
