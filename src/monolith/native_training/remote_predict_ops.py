"""Hold the import path of the reference system; the module has no content."""
