"""Groups of options of `monolith train`."""
