"""Keep the batch of a loss that is not finite: on the error, and in a file."""

import posixpath
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from monolith.checkpoint.storage import write_file
from monolith.data import Batch
from monolith.errors import NonFiniteLossError, OpError
from monolith.util.stores import local_path


def write_batch(path: str | Path, batch: Batch) -> None:
    """Write a batch as a Parquet file, complete or not at all.

    The file has a row for each sample, a column for each feature, dense column and label by its
    name, and `weight` and `time` if the batch has them.
    """
    columns = {name: ids.to_arrow() for name, ids in batch.features.items()}
    numbers = {**batch.dense, **batch.labels, "weight": batch.weight, "time": batch.time}
    columns |= {name: _array(column) for name, column in numbers.items() if column is not None}
    if local_path(str(path)) is None:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink)
        write_file(str(path), sink.getvalue().to_pybytes())
        return
    part = Path(f"{path}.part")
    pq.write_table(pa.table(columns), part)
    part.rename(path)


def _array(column: torch.Tensor) -> pa.Array:
    flat = pa.array(column.detach().reshape(-1).numpy())
    if column.dim() == 1:
        return flat
    return pa.FixedSizeListArray.from_arrays(flat, column[0].numel())


def loss_error(
    loss: float, step: int, batch: Batch, folder: str | Path | None
) -> NonFiniteLossError:
    """Write the batch of a loss that is not finite into a folder, if any; return the error."""
    path, where = None, "error.batch has the samples"
    if folder is not None:
        try:
            path = _keep(folder, f"non_finite_loss_{step}.parquet", batch)
            where = f"the samples are in {path}"
        except (OSError, OpError) as reason:  # the loss is the error to tell
            where += f", and they are not in {folder}: {reason}"
    error = NonFiniteLossError(
        f"[Trainer.fit] expected a finite loss, got {loss} in step {step}; nothing was stepped "
        f"with it, {where}"
    )
    error.step, error.batch, error.path = step, batch, path
    return error


def _keep(folder: str | Path, name: str, batch: Batch) -> str:
    """Write a batch into a folder, which is made if missing; return the path of the file."""
    local = local_path(str(folder))
    if local is None:
        path = posixpath.join(str(folder), name)
    else:
        Path(local).mkdir(parents=True, exist_ok=True)
        path = str(Path(local) / name)
    write_batch(path, batch)
    return path
