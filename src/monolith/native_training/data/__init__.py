"""Give the import paths of the reference system's `data`."""
