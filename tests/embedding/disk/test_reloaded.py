"""The shared suite on tables that come from a save."""

from monolith.embedding import Table, restore_tables, save_tables
from tests.suites.table import TableSuite


def reloaded(config, clock, **options):
    """A table that was saved and restored before its first use."""
    save_tables(Table(config, clock=clock), "memory://reloaded", num_threads=1)
    table = Table(config, clock=clock, **options)
    restore_tables(table, "memory://reloaded", num_threads=1)
    return table


class TestReloaded(TableSuite):
    make = staticmethod(reloaded)
