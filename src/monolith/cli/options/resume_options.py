"""Check `--checkpoints` and `--resume` of `monolith train`, and say what a run has saved."""

import posixpath
import shlex
import sys
from dataclasses import dataclass

from monolith.checkpoint import Checkpoint, checkpoint_exists, find
from monolith.checkpoint.run_lock import only_run
from monolith.cli.console import fail
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError
from monolith.train import FitResult
from monolith.train.run_metrics import SaveCounts

_RESUME, _AUTO_RESUME = "--resume", "--auto-resume"


def words_of_saves(saves: SaveCounts) -> str:
    """Return the numbers of saves in words, without those that are zero.

    Example:
        >>> words_of_saves(SaveCounts(num_saved=12, num_skipped=1, num_failed=2))
        'saved 12 checkpoints, 1 skipped, 2 failed'
    """
    words = [f"saved {saves.num_saved:,} checkpoint{'' if saves.num_saved == 1 else 's'}"]
    words += [f"{saves.num_skipped:,} skipped"] if saves.num_skipped else []
    words += [f"{saves.num_waits:,} waited for"] if saves.num_waits else []
    words += [f"{saves.num_failed:,} failed"] if saves.num_failed else []
    return ", ".join(words)


@dataclass(frozen=True)
class ResumeOptions:
    """Options of `monolith train` for checkpoints.

    Args:
        directory: folder of checkpoints; None saves none.
        is_resumed: whether the run goes on with the current checkpoint.
        with_fallback: whether damaged checkpoints are left out.
        is_automatic: whether the run goes on with the current checkpoint, if there is one.
    """

    directory: str | None
    is_resumed: bool
    with_fallback: bool
    is_automatic: bool = False

    def check(self) -> Checkpoint | None:
        """Refuse options that do not fit each other or the directory, before a model is built.

        Returns:
            The checkpoint of the folder, if there is one.
        """
        if self.is_resumed and self.is_automatic:
            fail(f"expected {_RESUME} or {_AUTO_RESUME}, got both", status=2)
        may_resume = self.is_resumed or self.is_automatic
        if (may_resume or self.with_fallback) and self.directory is None:
            option = _AUTO_RESUME if self.is_automatic else "--fallback"
            option = _RESUME if self.is_resumed else option
            fail(f"expected --checkpoints DIR with {option}, got none", status=2)
        if self.with_fallback and not may_resume:
            fail("expected --resume with --fallback, got none", status=2)
        if self.directory is not None and checkpoint_exists(self.directory):
            folder = posixpath.dirname(self.directory) or "."
            fail(f"expected a folder, got the checkpoint {self.directory}; it is in {folder}", 2)
        try:
            checkpoint = self._newest(fallback=self.with_fallback)
        except (DataLossError, InvalidArgumentError, NotFoundError) as error:
            fail(self.words_of_damage(error))
        if self.is_resumed and checkpoint is None:
            fail(f"expected a checkpoint in {self.directory}, got none; leave {_RESUME} out")
        if not may_resume and checkpoint is not None:
            fail(
                f"expected a folder without checkpoints, got {checkpoint.prefix} "
                f"(step {checkpoint.step}); go on with it: {_RESUME}, "
                "or begin anew in another folder: --checkpoints DIR"
            )
        if checkpoint is not None and self.directory is not None:
            with only_run(self.directory):
                pass  # a run that saves here would delete what this one is about to read
        return checkpoint

    def words_of_damage(self, error: OpError) -> str:
        """Say what is wrong with the checkpoint to go on with, and what may help."""
        if self.with_fallback:
            return str(error)
        return f"{error}\nto take the newest checkpoint that is whole: {_RESUME} --fallback"

    def _newest(self, *, fallback: bool = False) -> Checkpoint | None:
        if self.directory is None:
            return None
        return find(self.directory, fallback=fallback)

    def words_of_end(self, result: FitResult) -> str:
        """Say how many checkpoints a run has saved, and where the newest one is."""
        checkpoint = self._newest()
        words = words_of_saves(result.saves)
        if checkpoint is None:
            return words if result.saves.num_failed else "nothing was saved"
        return f"{words}; step {checkpoint.step or 0:,} is saved at {checkpoint.prefix}"

    def words_of_stop(self, result: FitResult, *, has_hint: bool = True) -> str:
        """Say what happened at Ctrl-C or SIGTERM, and which command goes on."""
        end = self.words_of_end(result)
        if has_hint and self._newest() is not None:
            words = [word for word in sys.argv[1:] if word not in (_RESUME, _AUTO_RESUME)]
            end += f"\nto go on: {shlex.join(['monolith', *words, _RESUME])}"
        return f"{result.ended} after step {result.figures.step:,}, which was finished; {end}"
