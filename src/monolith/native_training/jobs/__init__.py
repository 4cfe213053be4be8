"""Hold the parts of a job of several processes (docs/reference/jobs.md)."""
