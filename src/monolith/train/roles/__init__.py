"""The roles of a job: servers, workers, and the chief among the workers."""
