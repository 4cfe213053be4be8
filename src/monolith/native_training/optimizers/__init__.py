"""Hold the dense optimizers at their import paths."""
