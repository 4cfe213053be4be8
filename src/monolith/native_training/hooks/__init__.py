"""Import paths of the reference system."""
