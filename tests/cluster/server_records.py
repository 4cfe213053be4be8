"""What the tables of server processes did: written by a server at its end, replayed by a test."""

import os
import pickle
from pathlib import Path

import monolith.table
from monolith.cluster.server_host import ServerHost
from monolith.table.replay import Record


def record_tables(folder):
    """Record all tables that this process makes; the end of its server writes the records."""
    table_class, close, records = monolith.table.Table, ServerHost.close, []

    def recorded(config, **options):
        record = Record()
        records.append((config.name, record))
        return table_class(config, record=record, **options)

    def write_and_close(server):
        for number, (name, record) in enumerate(records):
            path = Path(folder) / f"{name}-{server.index}-{os.getpid()}-{number}"
            path.write_bytes(pickle.dumps((record._calls, record._events())))
        records.clear()
        close(server)

    monolith.table.Table, ServerHost.close = recorded, write_and_close


class _ReadRecord(Record):
    """A record that another process wrote."""

    def __init__(self, path):
        super().__init__()
        self._calls, self._read_events = pickle.loads(path.read_bytes())

    def _events(self):
        return self._read_events


def read_records(folder, name):
    """The records of a table, one of each server."""
    return [_ReadRecord(path) for path in sorted(Path(folder).glob(f"{name}-*"))]
