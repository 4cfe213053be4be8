"""Tables on disk, in files that any Arrow reader opens (docs/disk.md)."""

from monolith.table.disk.table_load import load_table, load_tables, restore_tables
from monolith.table.disk.table_save import save_tables
from monolith.table.disk.workers import Progress

__all__ = [
    "Progress",
    "load_table",
    "load_tables",
    "restore_tables",
    "save_tables",
]
