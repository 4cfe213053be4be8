"""What `monolith inspect` shows of saves, checkpoints and tasks."""
