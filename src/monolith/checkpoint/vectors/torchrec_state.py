"""Write the tables of a checkpoint as the state_dict of an EmbeddingBagCollection of TorchRec."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from monolith.checkpoint.vectors.checkpoint_rows import CheckpointTable, joined_weights
from monolith.checkpoint.vectors.row_files import check_local
from monolith.errors import InvalidArgumentError


def write_torchrec_state(
    tables: Sequence[CheckpointTable],
    path: "str | os.PathLike[str]",
    advance: Callable[[int], None] = lambda num_rows: None,
) -> dict[Path, tuple[int, int]]:
    """Write a state_dict with `torch.save`, and a file of keys for each table next to it.

    The state_dict has a float32 matrix `embedding_bags.<table>.weight` for each table. Row i of the
    matrix is that of the i-th key in the file `<stem>.<table>.keys.parquet`. Keys ascend, so that
    `torch.searchsorted` finds the index of a key. All weights are in memory at once. The file of
    the state_dict appears last, when all files are complete.

    Args:
        tables: Tables of a checkpoint.
        path: New file on this machine that ends in .pt or .pth.
        advance: Called with the number of rows that were read so far; each row is read twice.

    Returns:
        Path of each file of keys -> shape of the matrix.

    Raises:
        InvalidArgumentError: The path is no new .pt file, or a table has a name that no module can
            have.
    """
    target = _checked(path, tables)
    state: dict[str, torch.Tensor] = {}
    shapes: dict[Path, tuple[int, int]] = {}
    num_read = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with _files_together() as create:
        for table in tables:
            parts = [torch.empty(0, dtype=torch.int64)]
            for rows in table.rows():
                parts.append(rows.keys.clone())
                advance(num_read := num_read + len(rows))
            keys = torch.cat(parts).sort().values
            weights = torch.empty(len(keys), table.config.dim)
            for rows in table.rows():
                weights[torch.searchsorted(keys, rows.keys)] = joined_weights(table.config, rows)
                advance(num_read := num_read + len(rows))
            name = table.config.name
            state[f"embedding_bags.{name}.weight"] = weights
            path_of_keys = target.with_name(f"{target.stem}.{name}.keys.parquet")
            pq.write_table(pa.table({"key": keys.numpy()}), create(path_of_keys))
            shapes[path_of_keys] = (len(keys), table.config.dim)
        torch.save(state, create(target))
    return shapes


def _checked(path: "str | os.PathLike[str]", tables: Sequence[CheckpointTable]) -> Path:
    check_local(path)
    target = Path(path)
    if target.suffix not in (".pt", ".pth"):
        raise InvalidArgumentError(
            f"[export] expected a file that ends in .pt or .pth, got {os.fspath(path)!r}"
        )
    if target.exists():
        raise InvalidArgumentError(f"[export] expected a new file, got {target}, which exists")
    for table in tables:
        if "." in table.config.name or "/" in table.config.name:
            raise InvalidArgumentError(
                "[export] expected tables with names that modules and files can have, without '.' "
                f"and '/', got {table.config.name!r}; choose other tables with --table"
            )
    return target


@contextlib.contextmanager
def _files_together() -> Iterator[Callable[[Path], Path]]:
    """Return a function that names temporary files; they get their names when the block ends."""
    files: dict[Path, Path] = {}

    def create(path: Path) -> Path:
        files[path] = path.with_name(f".{path.name}.{os.getpid()}")
        return files[path]

    try:
        yield create
        for path, temporary in files.items():
            temporary.replace(path)
    finally:
        for temporary in files.values():
            temporary.unlink(missing_ok=True)
