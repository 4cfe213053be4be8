"""Import paths of the reference system: thin adapters onto the package's own modules."""
