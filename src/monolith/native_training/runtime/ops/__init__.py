"""Import paths of the reference system's native ops."""
