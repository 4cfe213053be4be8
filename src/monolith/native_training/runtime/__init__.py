"""Hold the native ops at their import path."""
