"""Checks of the arguments of table verbs, shared by all tables for equal error texts."""

from collections.abc import Iterable, Sequence

import torch

from monolith.errors import FailedPreconditionError
from monolith.table.arguments import as_integer, as_list, check_number
from monolith.table.config import (
    NUM_PARTITIONS,
    TableConfig,
    column_dtypes,
    column_sizes,
    segments_of,
)
from monolith.table.initializers import MAX_FLOAT32
from monolith.table.rows import Rows

MAX_BATCH = (1 << 31) - 1
"""Largest number of keys in one call."""

MAX_TIME = (1 << 32) - 1
"""Largest update time in seconds that a row can hold."""

MAX_THREADS = 256
"""Largest number of threads in one call."""

_ONE_THREAD_BELOW = 4096  # keys; a smaller call is faster on the caller's thread
_KEYS_PER_THREAD = 512  # a thread with fewer keys costs more than it saves


def check_tensor(
    where: tuple[str, str], name: str, value: object, dtype: torch.dtype, ndim: int
) -> None:
    """Refuse a value that is no contiguous CPU tensor of `dtype` with `ndim` dimensions.

    Args:
        where: start and end of the message; the end may be empty.
        name: name of the value in the message.
        value: value to check.
        dtype: dtype of a valid value.
        ndim: number of dimensions of a valid value.
    """
    value = check_part(where, name, value, dtype, ndim)
    start, end = where[0], where[1] and f" {where[1]}"
    if not value.is_contiguous():
        raise ValueError(
            f"{start} expected contiguous {name}, got strides {value.stride()}{end}; "
            "call .contiguous()"
        )
    if value.is_neg():
        raise ValueError(
            f"{start} expected {name} as they are in memory, got a negated view{end}; "
            "call .resolve_neg()"
        )


def check_part(
    where: tuple[str, str], name: str, value: object, dtype: torch.dtype, ndim: int
) -> torch.Tensor:
    """Check a tensor as `check_tensor` does, but allow any strides: the tensor is copied."""
    start, end = where[0], where[1] and f" {where[1]}"
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{start} expected {name} as a torch.Tensor, got {type(value).__name__}{end}"
        )
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        hint = "" if value.is_nested else "; call .to_dense()"
        raise ValueError(
            f"{start} expected {name} as a dense tensor, got layout {layout}{end}{hint}"
        )
    if value.dtype != dtype:
        expected, got = str(dtype).removeprefix("torch."), str(value.dtype).removeprefix("torch.")
        raise TypeError(
            f"{start} expected {name} of dtype {expected}, got {got}{end}; "
            f"cast with .to(torch.{expected})"
        )
    if not value.is_cpu:  # much faster than a comparison of the device's type
        raise ValueError(
            f"{start} expected {name} on device cpu, got {value.device}{end}; move with .cpu()"
        )
    if value.dim() != ndim:
        raise ValueError(
            f"{start} expected {name} with {ndim} dimension(s), got shape {tuple(value.shape)}{end}"
        )
    return value


def check_part_rows(
    where: tuple[str, str], name: str, rows: object, shape: tuple[int, int]
) -> torch.Tensor:
    """Refuse a part that is no float32 matrix of `shape`."""
    part = check_part(where, name, rows, torch.float32, 2)
    _check_shape(where, name, part, shape)
    return part


def _check_shape(
    where: tuple[str, str], name: str, values: torch.Tensor, shape: tuple[int, int]
) -> None:
    if tuple(values.shape) != shape:
        raise ValueError(
            f"{where[0]} expected {name} of shape {shape}, got {tuple(values.shape)} {where[1]}"
        )


def _where(config: TableConfig, verb: str) -> tuple[str, str]:
    return f"[Table.{verb}]", f"(table {config.name!r})"


def check_keys(config: TableConfig, verb: str, keys: torch.Tensor) -> None:
    """Refuse keys that are not a contiguous 1-D int64 CPU tensor of at most `MAX_BATCH` keys."""
    check_tensor(_where(config, verb), "keys", keys, torch.int64, 1)
    check_num_keys(config, verb, keys.numel())


def check_num_keys(config: TableConfig, verb: str, num_keys: int) -> None:
    """Refuse more keys than `MAX_BATCH`."""
    if num_keys > MAX_BATCH:
        where = _where(config, verb)
        raise ValueError(
            f"{where[0]} expected at most {MAX_BATCH} keys, got {num_keys} {where[1]}; "
            "split the batch"
        )


def check_integer(config: TableConfig, verb: str, name: str, value: int) -> int:
    """Return the value as an int; refuse other values."""
    if type(value) is int:
        return value
    where = _where(config, verb)
    return as_integer(where[0], name, value, f" {where[1]}")


def check_key(config: TableConfig, verb: str, name: str, key: int) -> int:
    """Return the key as an int; refuse a key that is no int64."""
    key = check_integer(config, verb, name, key)
    if not -(1 << 63) <= key < 1 << 63:
        where = _where(config, verb)
        raise ValueError(f"{where[0]} expected {name} as an int64 key, got {key} {where[1]}")
    return key


def default_threads(num_keys: int) -> int:
    """Return the number of threads of a call without `num_threads`."""
    return 1 if num_keys < _ONE_THREAD_BELOW else _useful(torch.get_num_threads(), num_keys)


def check_threads(config: TableConfig, verb: str, num_threads: int | None, num_keys: int) -> int:
    """Return the number of threads of a call, at most as many as its keys can feed."""
    if num_threads is None:
        return default_threads(num_keys)
    most = check_integer(config, verb, "num_threads", num_threads)
    if most < 1:
        where = _where(config, verb)
        raise ValueError(f"{where[0]} expected num_threads >= 1, got {most} {where[1]}")
    return _useful(most, num_keys)


def _useful(most: int, num_keys: int) -> int:
    return max(1, min(most, -(-num_keys // _KEYS_PER_THREAD), MAX_THREADS))


def check_matrix(
    config: TableConfig, verb: str, name: str, values: torch.Tensor, shape: tuple[int, int]
) -> None:
    """Refuse values that are not a contiguous float32 CPU matrix of `shape`."""
    check_matrix_of(_where(config, verb), name, values, torch.float32, shape)


def check_matrix_of(
    where: tuple[str, str],
    name: str,
    values: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, int],
) -> None:
    """Refuse values that are not a contiguous CPU matrix of `dtype` and `shape`."""
    check_tensor(where, name, values, dtype, 2)
    _check_shape(where, name, values, shape)


def check_training(config: TableConfig, verb: str) -> None:
    """Refuse a verb that creates or trains rows if the table is a serving table."""
    if config.kind != "training":
        where = _where(config, verb)
        raise FailedPreconditionError(
            f"{where[0]} expected a training table, got a {config.kind} one {where[1]}"
        )


def check_step(config: TableConfig, verb: str, step: int) -> int:
    """Return the step as an int; refuse a negative step, or one that is no int64."""
    return check_step_of(_where(config, verb), step)


def check_step_of(where: tuple[str, str], step: int) -> int:
    """Check a step as `check_step` does, with the start and end of the message."""
    step = as_integer(where[0], "step", step, f" {where[1]}")
    if not 0 <= step < 1 << 63:
        raise ValueError(f"{where[0]} expected step in [0, 2**63), got {step} {where[1]}")
    return step


def check_rates(
    config: TableConfig, verb: str, step: int, rates: Sequence[float] | None
) -> list[float]:
    """Return one finite rate >= 0 per segment: `rates`, or the rates of the segments at `step`."""
    expected = len(segments_of(config))
    if rates is None:
        rates = [segment.optimizer.rate(step) for segment in segments_of(config)]
    elif type(rates) is list and len(rates) == expected and all(map(_is_plain_rate, rates)):
        return rates  # fast path of a training step
    where = _where(config, verb)
    rates = as_list(where[0], "learning_rates", rates, f" {where[1]}")
    if len(rates) != expected:
        raise ValueError(
            f"{where[0]} expected {expected} learning rate(s), one per segment, "
            f"got {len(rates)} {where[1]}"
        )
    return [_check_rate(where, i, rate) for i, rate in enumerate(rates)]


def check_rate(config: TableConfig, segment: int, rate: float) -> float:
    """Return a scheduled rate of one segment, checked, for `apply_gradients`."""
    if _is_plain_rate(rate):
        return rate
    return _check_rate(_where(config, "apply_gradients"), segment, rate)


def _check_rate(where: tuple[str, str], segment: int, rate: float) -> float:
    check_number(where[0], f"learning rate {segment}", rate, f" {where[1]}")
    if not 0 <= rate <= MAX_FLOAT32:
        raise ValueError(
            f"{where[0]} expected learning rates in [0, {MAX_FLOAT32:g}], got {rate} {where[1]}"
        )
    return float(rate)


def _is_plain_rate(rate: object) -> bool:
    return type(rate) is float and 0 <= rate <= MAX_FLOAT32


def check_rows(config: TableConfig, rows: Rows) -> None:
    """Refuse a chunk with invalid times, or with other columns than the table's."""
    where = _where(config, "import_rows")
    if not isinstance(rows, Rows):
        raise TypeError(f"{where[0]} expected Rows, got {type(rows).__name__} {where[1]}")
    check_keys(config, "import_rows", rows.keys)
    check_tensor(where, "times", rows.times, torch.int64, 1)
    sizes = column_sizes(config)
    if set(rows.columns) != set(sizes):
        raise ValueError(
            f"{where[0]} expected columns {sorted(sizes)}, got {sorted(rows.columns)} {where[1]}"
        )
    for name, dtype in column_dtypes(config).items():
        shape = (len(rows), sizes[name])
        check_matrix_of(where, name, rows.columns[name], getattr(torch, dtype), shape)
    times = rows.times.numpy()  # torch would start several threads for a minimum
    if len(times) and not (times.min() >= 0 and times.max() <= MAX_TIME):
        raise ValueError(
            f"{where[0]} expected times in [0, {MAX_TIME}], got "
            f"[{times.min()}, {times.max()}] {where[1]}"
        )


def check_time(config: TableConfig, verb: str, now: int) -> None:
    """Refuse a time that a row cannot store."""
    check_time_of(_where(config, verb), now)


def check_time_of(where: tuple[str, str], now: int) -> None:
    """Check a time as `check_time` does, with the start and end of the message."""
    if not 0 <= now <= MAX_TIME:
        raise ValueError(
            f"{where[0]} expected now in [0, {MAX_TIME}] seconds, got {now} {where[1]}"
        )


def check_partitions(config: TableConfig, verb: str, partitions: Iterable[int] | None) -> list[int]:
    """Return the partitions in ascending order, or all for None; refuse invalid numbers."""
    if partitions is None:
        return list(range(NUM_PARTITIONS))
    where = _where(config, verb)
    values = as_list(where[0], "partitions", partitions, f" {where[1]}")
    # Thousands of numbers: the quick way first.
    if not all(type(number) is int for number in values):
        values = [check_integer(config, verb, "a partition", number) for number in values]
    numbers = sorted(set(values))
    for partition in numbers:
        if not 0 <= partition < NUM_PARTITIONS:
            raise ValueError(
                f"{where[0]} expected partitions in [0, {NUM_PARTITIONS}), "
                f"got {partition} {where[1]}"
            )
    return numbers


def hash_ranges(config: TableConfig, partitions: Iterable[int] | None) -> list[tuple[int, int]]:
    """Return ascending (first hash, last hash) ranges of the partitions, or of all for None."""
    if partitions is None:
        return [(0, (1 << 64) - 1)]
    ranges: list[tuple[int, int]] = []
    for partition in check_partitions(config, "export", partitions):
        first, last = partition << 52, ((partition + 1) << 52) - 1
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges
