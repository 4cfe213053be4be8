"""What a run does about errors of others."""

from monolith.errors import AbortedError, OpError

PREEMPTION_ERRORS: tuple[type[OpError], ...] = (AbortedError,)
"""Errors after which a run restores its state and goes on."""
