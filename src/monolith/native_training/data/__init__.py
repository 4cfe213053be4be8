"""Hold the functions on datasets at their import paths."""
