"""Tables on disk: Arrow files by ranges of partitions, named by a manifest (docs/disk.md)."""

from monolith.embedding.disk.load import load_table, load_tables, restore_tables
from monolith.embedding.disk.save import save_tables
from monolith.embedding.disk.workers import Progress

__all__ = ["Progress", "load_table", "load_tables", "restore_tables", "save_tables"]
