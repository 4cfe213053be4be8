"""How a run of `monolith train` begins: anew, or with a checkpoint; and what it says of them."""

import shlex
import sys
from dataclasses import dataclass

from monolith.checkpoint import Checkpoint, locate_checkpoint
from monolith.cli.talk import fail
from monolith.train import FitResult

__all__ = ["Beginning"]

_RESUME = "--resume"


@dataclass(frozen=True)
class Beginning:
    """The options of checkpoints.

    Args:
        directory: of checkpoints; None: there are none.
        is_resumed: whether the run goes on with one of them.
        with_fallback: whether damaged ones are left out.
    """

    directory: str | None
    is_resumed: bool
    with_fallback: bool

    def check(self) -> Checkpoint | None:
        """Refuse options that do not fit each other or the directory, before a model is built.

        Returns:
            The checkpoint to go on with, if the run is resumed.
        """
        if (self.is_resumed or self.with_fallback) and self.directory is None:
            option = _RESUME if self.is_resumed else "--fallback"
            fail(f"expected --checkpoints DIR with {option}, got none", status=2)
        if self.with_fallback and not self.is_resumed:
            fail("expected --resume with --fallback, got none", status=2)
        found = self._newest(fallback=self.with_fallback)
        if self.is_resumed and found is None:
            fail(f"expected a checkpoint in {self.directory}, got none; leave {_RESUME} out")
        if not self.is_resumed and found is not None:
            fail(
                f"expected a folder without checkpoints, got {found.prefix} (step {found.step}); "
                f"go on with it: {_RESUME}, or begin anew in another folder: --checkpoints DIR"
            )
        return found

    def _newest(self, *, fallback: bool = False) -> Checkpoint | None:
        if self.directory is None:
            return None
        return locate_checkpoint(self.directory, fallback=fallback)

    def words_of_end(self) -> str:
        """Where the newest checkpoint is."""
        found = self._newest()
        if found is None:
            return "nothing was saved"
        return f"step {found.step or 0:,} is saved at {found.prefix}"

    def words_of_stop(self, result: FitResult) -> str:
        """What happened at Ctrl-C, and the command that goes on."""
        end = self.words_of_end()
        if self._newest() is not None:
            given = [word for word in sys.argv[1:] if word != _RESUME]
            end += f"\nto go on: {shlex.join(['monolith', *given, _RESUME])}"
        return f"interrupted after step {result.figures.step:,}, which was finished; {end}"
