"""List the errors by which the reference system knows a preempted worker."""

from monolith.errors import AbortedError, OpError

PREEMPTION_ERRORS: tuple[type[OpError], ...] = (AbortedError,)
"""Any of them ends a run here; `restore` and the next `fit` go on from the last checkpoint."""
