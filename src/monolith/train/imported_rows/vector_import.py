"""Import vectors into a table: check their size and values, and give the rows new state."""

import math
from collections.abc import Callable

import torch

from monolith.checkpoint.vectors.vector_chunk import VectorChunk, VectorSource
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.table.base import BaseTable
from monolith.table.config import segment_name, segments_of
from monolith.train.imported_rows.import_target import ImportTarget

_CHUNK_BYTES = 1 << 21  # of vectors, which stay in a second-level cache
_MAX_ROWS = 1 << 16


def import_vectors(
    target: ImportTarget,
    feature: str,
    source: VectorSource,
    advance: Callable[[int], None] = lambda num_rows: None,
) -> None:
    """Import vectors into the table of a feature, with the state of new rows.

    A vector has the weights of all slices of a row in their order. A bias, which is the first
    weight of a row, may be left out of the vectors, and is 0 then.

    Args:
        target: Target that is open.
        feature: Name of a feature or of a table.
        source: Vectors with their keys.
        advance: Called with the number of rows that were imported so far.

    Raises:
        NotFoundError: The task has no such feature.
        InvalidArgumentError: There are no vectors, or they have another size than the rows of the
            feature.
        DataLossError: A value is NaN or infinite.
        FailedPreconditionError: The budget of the table refuses new rows.
    """
    table = target.table(feature)
    has_bias = _has_bias(target, table)
    if not source.num_rows:
        raise InvalidArgumentError(f"[import] expected vectors, got none ({source.where})")
    if source.dim not in (table.dim, table.dim - has_bias):
        raise InvalidArgumentError(_words_of_size(table, source, has_bias))
    target.expect_rows(table, source.num_keys)
    num_rows = 0
    for chunk in source.chunks(max(1, min(_MAX_ROWS, _CHUNK_BYTES // (4 * table.dim)))):
        _check_finite(chunk)
        weights = chunk.vectors
        if source.dim < table.dim:
            weights = torch.cat([torch.zeros(len(weights), 1), weights], 1)
        target.import_weights(table, chunk.keys, weights, chunk.times)
        num_rows += len(weights)
        advance(num_rows)


def _has_bias(target: ImportTarget, table: BaseTable) -> bool:
    return target.trainer.features.features[table.name].bias


def _words_of_size(table: BaseTable, source: VectorSource, has_bias: bool) -> str:
    config, expected = table.config, str(table.dim)
    if has_bias:
        expected = f"{table.dim - 1}, or {table.dim} with the bias first,"
    parts = [f"{segment_name(config, i)} {s.dim}" for i, s in enumerate(segments_of(config))]
    slices = f"; its slices are {', '.join(parts)}" if len(parts) > 1 else ""
    return (
        f"[import] expected vectors of {expected} numbers, as table {table.name!r} has, got "
        f"vectors of {source.dim} ({source.where}){slices}"
    )


def _check_finite(chunk: VectorChunk) -> None:
    if not chunk.vectors.numel():
        return
    low, high = torch.aminmax(chunk.vectors)  # NaN makes both NaN
    if math.isfinite(low) and math.isfinite(high):
        return
    place = int(torch.isfinite(chunk.vectors).all(dim=1).logical_not().nonzero()[0])
    value = chunk.vectors[place][~torch.isfinite(chunk.vectors[place])][0].item()
    raise DataLossError(
        f"[import] expected finite numbers, got {value} in {chunk.row(place)}; leave the row out"
    )
