"""Make the hooks of queues that tables feed hooks of the run."""

from collections.abc import Iterable, Sequence
from typing import Any

from monolith.train.driver import QUEUE_HOOKS, Hook, current_run


def use_queue_hooks(hooks: Sequence[Hook]) -> None:
    """Add hooks to the current run, each once; outside of a run nothing happens.

    `drive` begins to call these hooks when the run starts, or before the next step.
    """
    run = current_run() if hooks else None
    if run is not None:
        known = {id(hook) for hook in run.collection(QUEUE_HOOKS)}
        for hook in hooks:
            if id(hook) not in known:
                run.add(QUEUE_HOOKS, hook)


def queue_hooks_of(owners: Iterable[Any]) -> list[Hook]:
    """Return the hooks of the owners that have `get_queue_hooks`, such as tables."""
    return [
        hook
        for owner in owners
        if callable(getattr(owner, "get_queue_hooks", None)) and not isinstance(owner, type)
        for hook in owner.get_queue_hooks()
    ]
