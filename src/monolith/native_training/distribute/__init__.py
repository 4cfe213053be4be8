"""Hold what workers share: queues of strings and of files."""
