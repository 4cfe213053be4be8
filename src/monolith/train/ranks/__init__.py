"""The trainer in a job of synchronous ranks: steps, data, figures and states of all ranks."""
