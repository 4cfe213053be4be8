"""Initialise the data of a run, after all ranks have agreed on the data that they share."""

import importlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch

from monolith import environment
from monolith.train.driver import Coordinator, Hook, Run, current_or_default_run

_log = logging.getLogger(__name__)

REGISTERED_ID = "registed_dataset_id"
"""Collection of a run with the number of its data at the data service."""

_RANKS = "monolith.native_training.hvd_lib"


class Ranks(Protocol):
    """The processes of a synchronous job."""

    def rank(self) -> int:
        """Return the number of this process."""

    def broadcast(self, tensor: torch.Tensor, root_rank: int) -> torch.Tensor:
        """Return the tensor of one rank, in all ranks."""


class DatasetInitializerHook(Hook):
    """Runs the initialiser of an iterator when a run begins, and again after each recovery.

    Args:
        iterator: Has a function `initializer`.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._initializer: Callable[[], object] | None = None
        self._pending: int | None = None

    def begin(self) -> None:
        """Keep the initialiser."""
        self._initializer = self._iterator.initializer

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Run the initialiser."""
        assert self._initializer is not None
        self._initializer()


class BroadcastDatasetHook(DatasetInitializerHook):
    """Lets all ranks of a job read the data that rank 0 has registered.

    Args:
        iterator: Has a function `initializer`.
        find_ranks: Returns the ranks of the job; raises ImportError where there is no library
            for them.

    Attributes:
        dataset_id: Number of the data that all ranks read; None before the broadcast.
    """

    def __init__(self, iterator: Any, find_ranks: Callable[[], Ranks] | None = None) -> None:
        super().__init__(iterator)
        self._find_ranks = find_ranks or _installed_ranks
        self._ranks: Ranks | None = None
        self.dataset_id: int | None = None

    def begin(self) -> None:
        """Keep the initialiser, and the number of the data if ranks have to agree on it."""
        begin(self)

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Broadcast the number that is pending, and run the initialiser."""
        after_create_session(self, run, coordinator)


def begin(hook: BroadcastDatasetHook) -> None:
    """Keep the initialiser of a hook, and the number of its data if ranks have to agree on it.

    The collection `registed_dataset_id` of the run is empty afterwards.
    """
    DatasetInitializerHook.begin(hook)
    run = current_or_default_run()
    ids = run.take(REGISTERED_ID)
    if run.is_exporting or not ids or not environment.is_sync_training_wanted():
        return
    try:
        hook._ranks = hook._find_ranks()
    except ImportError as error:
        _log.warning(
            "the data of rank 0 is not broadcast: there is no backend for ranks: %s", error
        )
        return
    hook._pending = int(ids[0])


def after_create_session(
    hook: BroadcastDatasetHook, run: Run, coordinator: Coordinator | None = None
) -> None:
    """Broadcast the number that is pending in a hook, once, and run its initialiser."""
    own, hook._pending = hook._pending, None
    if own is not None:
        assert hook._ranks is not None
        common = hook._ranks.broadcast(torch.tensor([own]), root_rank=0)
        hook.dataset_id = int(common.reshape(-1)[0])
        _log.info("data %d of rank %d, read as data %d", own, hook._ranks.rank(), hook.dataset_id)
    assert hook._initializer is not None
    hook._initializer()


def make_dataset_hook(iterator: Any, *, uses_data_service: bool) -> DatasetInitializerHook:
    """Return the hook of an iterator; with a data service, ranks agree on the data first."""
    return (BroadcastDatasetHook if uses_data_service else DatasetInitializerHook)(iterator)


def _installed_ranks() -> Ranks:
    """Return the module of ranks.

    Raises:
        ImportError: There is none.
    """
    ranks: Any = importlib.import_module(_RANKS)
    return ranks  # type: ignore[no-any-return]
