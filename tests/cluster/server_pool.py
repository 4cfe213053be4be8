"""Sets of server processes for suites, each used by one table or engine of a test."""

from tests.cluster.server_processes import Nursery, connect


class ServerPool:
    """Gives each table of a test empty servers; closed tables and ended tests give them back.

    Args:
        num_servers: of a set.
        nursery: starts the servers; None makes one, which ends with the pool.
    """

    def __init__(self, num_servers=3, nursery=None):
        self._num_servers, self._nursery, self._is_guest = num_servers, nursery, nursery is not None
        self._sets = []

    def connect(self, **options):
        """Return a connection to servers without tables, until its tables are closed."""
        if self._nursery is None:
            self._nursery = Nursery()
        servers = next((s for s in self._sets if s.is_free()), None)
        if servers is None:
            servers = _Set(self._nursery.start_all(self._num_servers))
            self._sets.append(servers)
        return servers.connect(**options)

    def give_back(self):
        """Close all tables: a test has ended."""
        for servers in self._sets:
            servers.drop()

    def close(self):
        self.give_back()
        if self._nursery is not None and not self._is_guest:
            self._nursery.close()
            self._nursery = None
        self._sets = []


class _Set:
    def __init__(self, commands):
        self._commands, self._connected = commands, None

    def _tables(self):
        if self._connected is None:
            return []
        return [opened.table for opened in self._connected._tables.values()]

    def is_free(self):
        return all(table._is_closed for table in self._tables())

    def connect(self, **options):
        self.drop()
        self._connected = connect(self._commands, **options)
        return self._connected

    def drop(self):
        """Close the tables of the last user on the servers."""
        for table in self._tables():
            if not table._is_closed:
                table.close()
        if self._connected is not None:
            self._connected.close()
        self._connected = None
