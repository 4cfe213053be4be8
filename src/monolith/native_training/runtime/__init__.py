"""Import paths of the reference system below `runtime`."""
