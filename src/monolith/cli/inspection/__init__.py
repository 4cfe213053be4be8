"""What `monolith inspect` prints of a checkpoint, of saved tables and of a task file."""
