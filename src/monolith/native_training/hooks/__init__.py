"""Hold the hooks that make a run the current one."""
