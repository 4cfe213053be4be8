"""Import rows into the tables of a task, and save the first or the next checkpoint with them."""

import contextlib
import os
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, count
from types import MappingProxyType

import torch

from monolith.checkpoint import Checkpoint, WriteOptions, checkpoint_exists, find
from monolith.checkpoint.run_lock import only_run
from monolith.checkpoint.save import BASE_NAME
from monolith.checkpoint.storage import exists
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.table import Rows
from monolith.table.base import BaseTable
from monolith.table.codecs import encode
from monolith.table.config import (
    TableConfig,
    segment_name,
    segments_of,
    state_columns,
    storage_of,
)
from monolith.train.checkpoints import save_trainer
from monolith.train.settings import TrainSettings
from monolith.train.task import Task
from monolith.train.trainer import Trainer

_DEFAULTS = WriteOptions()


@dataclass(frozen=True)
class ImportCounts:
    """The numbers of rows that imports into a table changed.

    Attributes:
        num_rows: Number of rows that were given to the table.
        num_new: Number of inserted rows, whose key had no row before.
        num_replaced: Number of rows whose key had a row before.
        num_without_room: Number of rows that the budget of the table evicted or did not insert.
    """

    num_rows: int = 0
    num_new: int = 0
    num_replaced: int = 0
    num_without_room: int = 0


class ImportTarget:
    """A trainer whose tables take over rows of other systems; made by `open_target`.

    Used by one thread. Nothing is on disk before `save` returns.

    Attributes:
        trainer: Trainer with the tables, and the dense parameters of a checkpoint or new ones.
        directory: Folder of the checkpoint that `save` writes.
        checkpoint: Checkpoint that the trainer was restored from; None for a new trainer.
    """

    def __init__(
        self,
        trainer: Trainer,
        directory: str,
        checkpoint: Checkpoint | None,
        stack: contextlib.ExitStack,
        *,
        is_locked: bool,
    ) -> None:
        self.trainer, self.directory, self.checkpoint = trainer, directory, checkpoint
        self._stack, self._is_locked = stack, is_locked
        self._counts: dict[str, ImportCounts] = {}

    @property
    def counts(self) -> Mapping[str, ImportCounts]:
        """Name of each table with imported rows -> numbers of its rows."""
        return MappingProxyType(self._counts)

    @property
    def table_names(self) -> list[str]:
        """Names of the tables."""
        return list(self.trainer.features.tables)

    def table(self, name: str) -> BaseTable:
        """Return the table of a feature or of a table name.

        Raises:
            NotFoundError: The task has neither; the message names the nearest ones.
        """
        tables, features = self.trainer.features.tables, self.trainer.features.features
        if name in tables:
            return tables[name]
        if name in features:
            return tables[features[name].table]
        names = list(dict.fromkeys([*features, *tables]))
        near = get_close_matches(name, names, 3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
        known = f"it has {', '.join(names) or 'none'}"
        raise NotFoundError(
            f"[import] expected a feature or a table of task {self.trainer.task.name!r}, got "
            f"{name!r}; {hint or known}"
        )

    def expect_rows(self, table: BaseTable, num_rows: int) -> None:
        """Make room for the rows of an import at once, if the table is empty."""
        if not len(table):
            table._expect_rows(num_rows)

    def import_rows(self, table: BaseTable, rows: Rows) -> None:
        """Insert whole rows, replacing rows with the same keys; of equal keys the last wins.

        Admission does not apply: every key gets a row.

        Args:
            table: Table of this target.
            rows: Rows with all columns of the table: weights as the table stores them, and state.

        Raises:
            ValueError: A column, a length or a time is not that of the table.
            FailedPreconditionError: The budget of the table refuses new rows.
        """
        before, num_before = table.stats(), len(table)
        table.import_rows(rows)
        after, budget = table.stats(), table.config.budget
        evicted = after["num_evicted_for_budget"] - before["num_evicted_for_budget"]
        refused = after["num_refused"] - before["num_refused"]
        if refused and budget and budget.policy == "refuse":
            raise FailedPreconditionError(
                f"[import] expected room for {len(rows)} more rows, got none for {refused} of "
                f"them under {budget} (table {table.name!r}, {len(table)} rows); declare the "
                "feature with a larger budget"
            )
        new = len(table) - num_before + evicted
        count = self._counts.get(table.name, ImportCounts())
        self._counts[table.name] = ImportCounts(
            count.num_rows + len(rows),
            count.num_new + new,
            count.num_replaced + len(rows) - new - refused,
            count.num_without_room + evicted + refused,
        )

    def import_weights(
        self,
        table: BaseTable,
        keys: torch.Tensor,
        weights: torch.Tensor,
        times: torch.Tensor | None = None,
    ) -> None:
        """Insert rows with new optimizer state; see `import_rows`.

        Args:
            table: Table of this target.
            keys: Keys, int64 (n,).
            weights: Weights, float32 (n, dim): all segments in their order, with a bias first.
            times: Time of the last update of each row in seconds since 1970, int64 (n,); None means
                now.
        """
        if times is None:
            times = torch.full_like(keys, self.trainer.clock())
        self.import_rows(table, rows_with_new_state(table.config, keys, weights, times))

    def save(self, options: WriteOptions = _DEFAULTS) -> str:
        """Write a complete checkpoint, with which `monolith train --resume` goes on.

        No other checkpoint is replaced or removed, so that the one before the import can be
        restored.

        Returns:
            The prefix of the checkpoint: `<directory>/model.ckpt-<step>`, with `-import1`,
            `-import2` and so on if there is a checkpoint of the step.

        Raises:
            FailedPreconditionError: Another run saves into the folder, or has saved there.
            OpError: The folder cannot be written; its checkpoints stay as they were.
        """
        if not self._is_locked:
            with contextlib.ExitStack() as lock:
                lock.enter_context(only_run(self.directory))
                checkpoint = find(self.directory)
                if checkpoint is not None:
                    raise FailedPreconditionError(
                        f"[import] expected no checkpoint in {self.directory}, as when the import "
                        f"began, got {checkpoint.prefix} of another run; import once more"
                    )
                self._stack.push(lock.pop_all())  # until the target closes
            self._is_locked = True
        name = self._unused_name()
        return save_trainer(self.trainer, self.directory, 0, name=name, options=options)

    def _unused_name(self) -> str:
        first = f"{BASE_NAME}-{self.trainer.state.step}"
        names = chain([first], (f"{first}-import{n}" for n in count(1)))
        folder = self.directory
        return next(n for n in names if not checkpoint_exists(posixpath.join(folder, n)))


@contextlib.contextmanager
def open_target(
    task: Task, directory: "str | os.PathLike[str]", settings: TrainSettings | None = None
) -> Iterator[ImportTarget]:
    """Open a folder of checkpoints for an import of rows into the tables of a task.

    The trainer is restored from the current checkpoint of the folder, or is new in a folder without
    checkpoints, which need not exist.

    Args:
        task: Task whose tables take the rows.
        directory: Folder of checkpoints.
        settings: Options of the trainer; None takes the defaults.

    Raises:
        FailedPreconditionError: A run saves into the folder.
        NotFoundError: The checkpoint of the folder lacks a part of the task, as one of another
            task does.
        InvalidArgumentError: A shape or the config of a table is not that of the task.
        DataLossError: The checkpoint is damaged.

    Example:
        >>> import tempfile, torch
        >>> from monolith.nn import Feature
        >>> from monolith.train import Task
        >>> class Users(Task):
        ...     features = [Feature("user", dim=2)]
        ...     source = loss = None
        ...     def build(self):
        ...         return torch.nn.Identity()
        >>> with tempfile.TemporaryDirectory() as path:
        ...     with open_target(Users(), path) as target:
        ...         target.import_weights(target.table("user"), torch.tensor([7]), torch.ones(1, 2))
        ...         prefix = target.save()
        >>> prefix.removeprefix(path), target.counts["user"].num_new
        ('/model.ckpt-0', 1)
    """
    folder = os.fspath(directory)
    if checkpoint_exists(folder):
        raise InvalidArgumentError(
            f"[import] expected a folder of checkpoints, got the checkpoint {folder}; it is in "
            f"{os.path.dirname(folder) or '.'}"
        )
    with contextlib.ExitStack() as stack:
        is_locked = exists(folder)  # a folder is not made before there is something to save
        if is_locked:
            stack.enter_context(only_run(folder))
        checkpoint = find(folder)
        trainer = stack.enter_context(Trainer(task, settings))
        if checkpoint is not None:
            trainer.restore(checkpoint.prefix)
        yield ImportTarget(trainer, folder, checkpoint, stack, is_locked=is_locked)


def rows_with_new_state(
    config: TableConfig, keys: torch.Tensor, weights: torch.Tensor, times: torch.Tensor
) -> Rows:
    """Return rows with weights, encoded as a table stores weights, and the state of new rows.

    Args:
        config: Config of the table.
        keys: Keys, int64 (n,).
        weights: Weights, float32 (n, dim).
        times: Times in seconds since 1970, int64 (n,).
    """
    columns, start = {}, 0
    for i, segment in enumerate(segments_of(config)):
        part = weights[:, start : start + segment.dim].contiguous()
        storage = storage_of(config, i)
        columns[f"weight/{segment_name(config, i)}"] = (
            part if storage == "fp32" else encode(part, storage)
        )
        start += segment.dim
    for name, column in state_columns(config):
        dtype = getattr(torch, column.dtype)
        columns[name] = torch.full((len(keys), column.size), column.initial, dtype=dtype)
    return Rows(keys, times, columns)
