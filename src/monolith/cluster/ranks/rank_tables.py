"""`RankTables`: the shards of this rank, and the way to those of all ranks by calls."""

import socket
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING

from monolith.cluster.ranks.rank_group import RankGroup
from monolith.cluster.remote_servers import RemoteServers
from monolith.cluster.server_host import ServerHost
from monolith.cluster.servers import LocalServers, Servers
from monolith.cluster.shard_hosts import GroupHost
from monolith.cluster.zmq.connect import connect_servers
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.server_loop import ServerLoop
from monolith.errors import InvalidArgumentError
from monolith.table.routing import routing_of

if TYPE_CHECKING:
    from typing_extensions import Self


class RankTables:
    """The tables of a job of ranks. Each rank holds a shard of every table. Close it.

    Training reads and steps rows by collectives (`RanksEngine`). Everything else, such as saves,
    restores, evictions and evaluations, goes by calls, as to parameter servers: any rank may make
    them, and the rank that is called answers on threads of its own. Ranks of several machines talk
    with keys that rank 0 makes for the job.

    Args:
        group: the ranks.
        partition_strategy: which rank has the row of a key, the same in all ranks. "div": each rank
            has a range of the hashes of keys, and writes its rows into files of its own. "mod":
            rank key % R, as in the reference system; rank 0 writes the rows of all. Rows do not
            depend on it, except that "mod" gives each rank a `SlidingFilter` of its own.

    A wait of the `with` block that ends because a rank has failed becomes an `UnavailableError`
    with the reason.

    Attributes:
        group: the ranks.
        routing: the rank of each key.
        servers: all ranks as the servers of their shards.
        local_rank: number of this rank among those of its machine.

    Raises:
        InvalidArgumentError: the host name of one of several machines is none that others reach.
        InvalidArgumentError: the ranks have different strategies.
        ValueError: there is no such strategy.
    """

    def __init__(self, group: RankGroup, *, partition_strategy: str = "div") -> None:
        self.group = group
        self.routing = routing_of("[RankTables]", partition_strategy, group.size)
        group.check_equal({"tables": [f"partition strategy {partition_strategy}"]})
        self._host: ServerHost | None = None
        self._loop: ServerLoop | None = None
        self.servers: Servers
        self._local: LocalServers | None = None
        self._remote: RemoteServers | None = None
        self.local_rank = 0
        if group.size == 1:
            self.servers = self._local = LocalServers(1)
            return
        machines = group.control.gather(socket.gethostname())
        is_one_machine = len(set(machines)) == 1
        self.local_rank = machines[: group.rank].count(machines[group.rank])
        keys = None if is_one_machine else self._keys()
        address = "127.0.0.1" if is_one_machine else _own_address()
        self._host = ServerHost(group.rank, group.size, label=f"rank {group.rank}")
        self._loop = ServerLoop(self._host, f"tcp://{address}:0", keys=keys)
        self._loop.start()
        self.servers = self._remote = connect_servers(
            group.control.gather(self._loop.address), keys=keys, timeout_seconds=group.wait_seconds
        )
        group.on_failure(self._remote.close)  # calls to a rank that has failed end too

    def _keys(self) -> CurveKeys:
        keys = asdict(CurveKeys.new()) if self.group.rank == 0 else None
        return CurveKeys(**self.group.control.share(keys))

    def own_shards(self, names: Sequence[str]) -> GroupHost:
        """Return the shards of this rank of some tables, which are open."""
        if self._local is not None:
            return self._local.groups(names)[0]
        assert self._host is not None
        return self._host.group(list(names))

    def give_up(self) -> None:
        """End the waits of this rank for others: the job has failed."""
        self.group.cancel()
        if self._remote is not None:
            self._remote.close()

    def close(self) -> None:
        """Free the shards of this rank. The other ranks call no more. Closing twice is fine."""
        if self._local is not None:
            self._local.close()
        if self._remote is not None:
            self._remote.close()
        if self._loop is not None:
            self._loop.close()
        if self._host is not None:
            self._host.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.group.control.gather(None)  # no rank calls this one any more
            else:
                self.group.fail(error)
        finally:
            self.close()
        if error is not None and (reason := self.group.explain(error)) is not error:
            raise reason from error


def _own_address() -> str:
    """Return the address at which other machines reach this one, by its host name."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        address = str(error)
    if not address[:1].isdigit() or address.startswith("127."):
        raise InvalidArgumentError(
            f"[RankTables] expected a host name by which other machines reach this one, got "
            f"{name!r}, which is {address}; correct /etc/hosts"
        )
    return address
