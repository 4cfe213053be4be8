"""Parts of a table configuration of the reference system: per slot, compressors, other names."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monolith.table.arguments import as_list, check_kind, check_number
from monolith.table.initializers import Constant, Uniform
from monolith.table.optimizers import Optimizer
from monolith.table.precision import FixedR8, OneBit
from monolith.table.rules import check_int

_MAX_UINT32 = (1 << 32) - 1


class EntryType(enum.Enum):
    """What rows are for."""

    UNKNOWN = 0
    TRAINING = 1
    SERVING = 2


class StorageType(enum.Enum):
    """How rows lie in memory."""

    PACKED = 1
    RAW = 2


def _check_uint32(where: object, **values: int) -> None:
    for name, value in values.items():
        check_int(type(where).__name__, name, value, 0, _MAX_UINT32)


def _parts(where: object, name: str, kind: type) -> tuple[Any, ...]:
    """The parts of a config, one per slot."""
    place = f"[{type(where).__name__}]"
    parts = as_list(place, name, getattr(where, name))
    for part in parts:
        check_kind(place, f"each of {name}", part, kind)
    slots = [part.slot for part in parts]
    if len(set(slots)) != len(slots):
        raise ValueError(f"{place} expected each slot once, got {slots}")
    return tuple(parts)


@dataclass(frozen=True)
class SlotExpireTime:
    """Days that rows of a slot live after their last update.

    Args:
        slot: the slot.
        expire_time: days.
    """

    slot: int
    expire_time: int

    def __post_init__(self) -> None:
        _check_uint32(self, slot=self.slot, expire_time=self.expire_time)


@dataclass(frozen=True)
class SlotExpireTimeConfig:
    """Days that rows live after their last update, by slot.

    Args:
        slot_expire_times: slots with days of their own.
        default_expire_time: days of every other slot.

    Example:
        >>> SlotExpireTimeConfig().default_expire_time
        36500
    """

    slot_expire_times: Sequence[SlotExpireTime] = ()
    default_expire_time: int = 36500

    def __post_init__(self) -> None:
        parts = _parts(self, "slot_expire_times", SlotExpireTime)
        object.__setattr__(self, "slot_expire_times", parts)
        _check_uint32(self, default_expire_time=self.default_expire_time)


@dataclass(frozen=True)
class SlotOccurrenceThreshold:
    """Occurrences after which a key of a slot gets a row.

    Args:
        slot: the slot.
        occurrence_threshold: occurrences.
    """

    slot: int
    occurrence_threshold: int

    def __post_init__(self) -> None:
        _check_uint32(self, slot=self.slot, occurrence_threshold=self.occurrence_threshold)


@dataclass(frozen=True)
class SlotOccurrenceThresholdConfig:
    """Occurrences after which a key gets a row, by slot.

    Args:
        slot_occurrence_thresholds: slots with thresholds of their own.
        default_occurrence_threshold: of every other slot.

    Example:
        >>> SlotOccurrenceThresholdConfig().default_occurrence_threshold
        0
    """

    slot_occurrence_thresholds: Sequence[SlotOccurrenceThreshold] = ()
    default_occurrence_threshold: int = 0

    def __post_init__(self) -> None:
        parts = _parts(self, "slot_occurrence_thresholds", SlotOccurrenceThreshold)
        object.__setattr__(self, "slot_occurrence_thresholds", parts)
        _check_uint32(self, default_occurrence_threshold=self.default_occurrence_threshold)


@dataclass(frozen=True)
class Fp32Compressor:
    """Weights as they are, 4 bytes each."""


@dataclass(frozen=True)
class Fp16Compressor:
    """Weights of serving rows in IEEE half precision, 2 bytes each; training rows stay float32."""


Compressor = Fp32Compressor | Fp16Compressor | FixedR8 | OneBit


@dataclass(frozen=True)
class StochasticRoundingFloat16OptimizerWrapper:
    """An optimizer whose weights are stored in half precision, rounded at random.

    Args:
        optimizer: what it wraps.
    """

    optimizer: Optimizer

    def __post_init__(self) -> None:
        where = "[StochasticRoundingFloat16OptimizerWrapper]"
        check_kind(where, "optimizer", self.optimizer, Optimizer)


class DcOptimizer:
    """Delay compensation, which the reference system names but does not make either.

    Raises:
        ValueError: always.
    """

    def __init__(self, lambda_: float = 0.0) -> None:
        raise ValueError(
            f"[DcOptimizer] expected another optimizer, got lambda_={lambda_}; delay compensation "
            "is not supported"
        )


# The names below are those of the reference system.


def ConstantsInitializer(constant: float) -> Constant:  # noqa: N802
    """Every weight starts at `constant`."""
    return Constant(constant)


def RandomUniformInitializer(  # noqa: N802
    minval: float | None = None, maxval: float | None = None
) -> Uniform:
    """Weights start uniformly distributed; None stands for -0.05 and 0.05."""
    return Uniform(-0.05 if minval is None else minval, 0.05 if maxval is None else maxval)


def BatchSoftmaxInitializer(init_step_interval: float) -> Constant:  # noqa: N802
    """The weight of `BatchSoftmax` starts at an interval of so many steps, at least 1."""
    check_number("[BatchSoftmaxInitializer]", "init_step_interval", init_step_interval)
    if not init_step_interval >= 1:
        raise ValueError(f"init_step_interval should be >= 1, while got {init_step_interval}")
    return Constant(init_step_interval)
