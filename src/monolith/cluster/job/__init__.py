"""What the processes of a job share: dense parameters, data, flags, and the moment of a cut."""
