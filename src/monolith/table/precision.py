"""Storage and views of weights: 16-bit precisions, 8-bit and 1-bit codes.

| storage | bytes of n weights | code |
|---|---|---|
| "fp32" | 4 n | the weight |
| "fp16" | 2 n | nearest IEEE half, ties to even; held at +-65504 |
| "bf16" | 2 n | nearest bfloat16, ties to even; held at its largest finite number |
| FixedR8 | n | int8 multiple of fixed_range / 128 |
| OneBit | n / 8, rounded up | bit i % 8 of byte i // 8: whether weight i is above 0 |
"""

import math
from dataclasses import dataclass

from monolith.table.arguments import as_integer, check_number
from monolith.table.initializers import MAX_FLOAT32

PRECISIONS = ("fp32", "fp16", "bf16")
"""Precisions of the weights of training rows."""


@dataclass(frozen=True)
class FixedR8:
    """Stores weights as multiples of fixed_range / 128 in [-fixed_range, fixed_range).

    As a view, training lookups return the weights as if they were stored so; gradients pass
    unchanged.

    Args:
        fixed_range: largest magnitude.

    Example:
        >>> FixedR8(0.5).unit
        0.00390625
    """

    fixed_range: float = 1.0

    def __post_init__(self) -> None:
        check_number("[FixedR8]", "fixed_range", self.fixed_range)
        if not 1e-30 <= self.fixed_range <= 1e30:
            raise ValueError(
                f"[FixedR8] expected fixed_range in [1e-30, 1e+30], got {self.fixed_range}"
            )

    @property
    def unit(self) -> float:
        """Distance of two adjacent codes."""
        return self.fixed_range / 128


@dataclass(frozen=True)
class OneBit:
    """Stores one bit per weight, its sign: +-amplitude (HashNet, Cao et al., ICCV 2017).

    As a view, training lookups return amplitude * tanh(scale * weight), and gradients are
    multiplied by the derivative. The scale grows with the step, so that the values of training
    approach the values of serving:
    scale = min(init_scale * sqrt(1 + 0.005 * (step - step % step_size)), max_scale).

    Args:
        step_size: number of steps between two changes of the scale.
        amplitude: magnitude of a decoded weight.
        init_scale: scale at step 0.
        max_scale: largest scale.

    Example:
        >>> OneBit(step_size=100).scale(150)
        1.224744871391589
    """

    step_size: int = 200
    amplitude: float = 0.05
    init_scale: float = 1.0
    max_scale: float = 10000.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", as_integer("[OneBit]", "step_size", self.step_size))
        if self.step_size < 1:
            raise ValueError(f"[OneBit] expected step_size >= 1, got {self.step_size}")
        for name in ("amplitude", "init_scale", "max_scale"):
            value = getattr(self, name)
            check_number("[OneBit]", name, value)
            if not 1e-30 <= value <= MAX_FLOAT32:
                raise ValueError(
                    f"[OneBit] expected {name} in [1e-30, {MAX_FLOAT32:g}], got {value}"
                )
        if not self.amplitude * self.max_scale <= MAX_FLOAT32:
            raise ValueError(
                f"[OneBit] expected amplitude * max_scale <= {MAX_FLOAT32:g}, "
                f"got {self.amplitude} * {self.max_scale}"
            )

    def scale(self, step: int) -> float:
        """Return the scale at a step."""
        grown = self.init_scale * math.sqrt(1 + 0.005 * (step - step % self.step_size))
        return min(grown, self.max_scale)


View = FixedR8 | OneBit

Storage = str | View
"""One of PRECISIONS, or the code of a view."""


def codec_of(storage: Storage) -> tuple[str, float]:
    """Return the name and the parameter of the codec in the compiled core."""
    if isinstance(storage, FixedR8):
        return "fixed_r8", storage.unit
    if isinstance(storage, OneBit):
        return "one_bit", storage.amplitude
    if storage not in PRECISIONS:
        raise ValueError(
            f"[encode, decode] expected one of {', '.join(PRECISIONS)}, FixedR8 or OneBit, "
            f"got {storage!r}"
        )
    return storage, 0.0


def code_dtype(storage: Storage) -> str:
    """Return the dtype of the codes, by its name in torch."""
    if isinstance(storage, FixedR8):
        return "int8"
    if isinstance(storage, OneBit):
        return "uint8"
    return {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[storage]


def code_size(storage: Storage, dim: int) -> int:
    """Return the number of codes of `dim` weights."""
    return (dim + 7) // 8 if isinstance(storage, OneBit) else dim
