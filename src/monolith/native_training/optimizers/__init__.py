"""Import paths of the reference system's dense optimizers."""
