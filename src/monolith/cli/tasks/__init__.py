"""Task files: find and check the task that a command is given, and write a new one."""
