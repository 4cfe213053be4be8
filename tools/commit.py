"""Names the commit that results are recorded with; a tree with changes has none."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


class TreeError(Exception):
    """The tree has changes, or is not under git."""


def clean_commit(where: str, advice: str, *, ignore: str | None = None, root: Path = ROOT) -> str:
    """Return the full commit of a tree without changes.

    Args:
        where: what asks, for messages.
        advice: what the user can do, for messages.
        ignore: a folder below the root whose changes do not count.
        root: folder of the tree.

    Raises:
        TreeError: files are changed or new, or there is no git repository.
    """
    paths = ["."] if ignore is None else [".", f":(exclude){ignore}"]
    lines = _git(where, root, "status", "--porcelain", "--", *paths).splitlines()
    if lines:
        names = ", ".join(line[3:] for line in lines[:3]) + ", ..." * (len(lines) > 3)
        raise TreeError(
            f"[{where}] expected a tree without changes, got {len(lines)} changed or new files "
            f"({names}); {advice}"
        )
    return _git(where, root, "rev-parse", "HEAD").strip()


def _git(where: str, root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise TreeError(f"[{where}] expected a git repository, got: {done.stderr.strip()}")
    return done.stdout
