"""Parts of a table configuration of the reference system: per slot, compressors, other names."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from monolith.embedding.initializers import Constant, Uniform
from monolith.embedding.optimizers import Optimizer
from monolith.embedding.views import FixedR8, OneBit

__all__ = [
    "BatchSoftmaxInitializer",
    "Compressor",
    "ConstantsInitializer",
    "DcOptimizer",
    "EntryType",
    "Fp16Compressor",
    "Fp32Compressor",
    "RandomUniformInitializer",
    "SlotExpireTime",
    "SlotExpireTimeConfig",
    "SlotOccurrenceThreshold",
    "SlotOccurrenceThresholdConfig",
    "StochasticRoundingFloat16OptimizerWrapper",
    "StorageType",
]

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
        if not 0 <= value <= _MAX_UINT32:
            raise ValueError(
                f"[{type(where).__name__}] expected {name} in [0, {_MAX_UINT32}], got {value}"
            )


def _check_distinct(where: object, slots: list[int]) -> None:
    if len(set(slots)) != len(slots):
        raise ValueError(f"[{type(where).__name__}] expected each slot once, got {slots}")


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
        object.__setattr__(self, "slot_expire_times", tuple(self.slot_expire_times))
        _check_uint32(self, default_expire_time=self.default_expire_time)
        _check_distinct(self, [each.slot for each in self.slot_expire_times])


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
        thresholds = tuple(self.slot_occurrence_thresholds)
        object.__setattr__(self, "slot_occurrence_thresholds", thresholds)
        _check_uint32(self, default_occurrence_threshold=self.default_occurrence_threshold)
        _check_distinct(self, [each.slot for each in thresholds])


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
    if not init_step_interval >= 1:
        raise ValueError(f"init_step_interval should be >= 1, while got {init_step_interval}")
    return Constant(init_step_interval)
