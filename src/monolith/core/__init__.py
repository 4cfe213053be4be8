"""Give the import path of the reference system's `core`."""
