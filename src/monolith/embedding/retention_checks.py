"""Checks of what `import_candidates` takes: names, lengths, and the range of every number."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.embedding.admission import MinCount, SlidingFilter
from monolith.embedding.checks import MAX_TIME, check_tensor
from monolith.embedding.config import NUM_PARTITIONS, TableConfig
from monolith.embedding.reference_filter import ring_shape

__all__ = ["candidate_columns", "check_candidates"]

# numpy, because torch would start a team of threads in each thread of a load.
Numbers = NDArray[np.int64]

_MAX_INT64 = (1 << 63) - 1
_MAX_UINT32 = (1 << 32) - 1


def candidate_columns(config: TableConfig) -> tuple[str, ...]:
    """Names of the columns of `export_candidates`."""
    if config.kind == "serving":
        return ()
    if isinstance(config.admission, MinCount):
        return ("key", "count", "time")
    if isinstance(config.admission, SlidingFilter):
        return ("partition", "split", "cell", "value")
    return ()


def check_candidates(config: TableConfig, columns: Mapping[str, torch.Tensor]) -> None:
    """Refuse columns that are not exactly those of the table's admission, or numbers off range."""
    if not isinstance(columns, Mapping):
        got = type(columns).__name__
        raise TypeError(
            f"[Table.import_candidates] expected columns by name, got {got} (table {config.name!r})"
        )
    names = candidate_columns(config)
    if set(columns) != set(names):
        raise _error(config, f"columns {sorted(names)}", str(sorted(columns)))
    where = ("[Table.import_candidates]", f"(table {config.name!r})")
    for name in names:
        check_tensor(where, name, columns[name], torch.int64, 1)
    lengths = {name: len(columns[name]) for name in names}
    if len(set(lengths.values())) > 1:
        raise _error(config, "columns of equal length", str(lengths))
    if "count" in names:
        _check_range(config, "count", columns["count"].numpy(), 1, _MAX_UINT32)
        _check_range(config, "time", columns["time"].numpy(), 0, MAX_TIME)
    elif isinstance(config.admission, SlidingFilter) and names:
        numbers = {name: columns[name].numpy() for name in names}
        _check_filter(config, config.admission, numbers)


def _check_filter(config: TableConfig, rule: SlidingFilter, columns: Mapping[str, Numbers]) -> None:
    size, _, num_cells = ring_shape(rule.capacity // NUM_PARTITIONS, rule.split_num)
    _check_range(config, "partition", columns["partition"], 0, NUM_PARTITIONS - 1)
    _check_range(config, "split", columns["split"], -1, size - 1)
    is_head = columns["split"] < 0
    cell, value = columns["cell"], columns["value"]
    _check_range(config, "cell of split -1", cell[is_head], 0, size - 1)
    _check_range(config, "value of split -1", value[is_head], 0, _MAX_INT64)
    _check_range(config, "cell", cell[~is_head], 0, num_cells - 1)
    _check_range(config, "value", value[~is_head], 1, _MAX_UINT32)


def _check_range(config: TableConfig, name: str, values: Numbers, low: int, high: int) -> None:
    if len(values) and not (values.min() >= low and values.max() <= high):
        got = f"[{values.min()}, {values.max()}]"
        raise _error(config, f"{name} in [{low}, {high}]", got)


def _error(config: TableConfig, expected: str, got: str) -> ValueError:
    return ValueError(
        f"[Table.import_candidates] expected {expected}, got {got} (table {config.name!r})"
    )
