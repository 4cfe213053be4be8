"""Rounding, codes and views of weights, in numpy float32; each operation rounds once.

Stochastic rounding of training rows: a weight v between two neighbours of its precision is rounded
up iff u < (v - down) / (up - down), where u is a function of (seed, key, column, call). The call is
the table's `num_update_calls`; initial values are rounded as call 0, so that they depend on seed,
key and column only. Numbers beyond the largest finite number become that number; NaN stays NaN.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.table import initializers as counter_random
from monolith.table.config import TableConfig, segments_of, storage_of
from monolith.table.key_sums import Matrix
from monolith.table.precision import FixedR8, OneBit, Storage, View

_MAX_FP16 = np.float32(65504.0)
_MAX_BF16 = np.float32((2 - 2**-7) * 2.0**127)


def round_randomly(weights: Matrix, u: Matrix, precision: str) -> Matrix:
    """Return weights rounded to a 16-bit precision, as float32."""
    with np.errstate(all="ignore"):
        most = _MAX_FP16 if precision == "fp16" else _MAX_BF16
        v = np.clip(weights, -most, most)
        down, up = _neighbours_fp16(v) if precision == "fp16" else _neighbours_bf16(v)
        is_up = u < (v - down) / (up - down)
    result: Matrix = np.where(down == up, v, np.where(is_up, up, down))
    return result


def _neighbours_fp16(v: Matrix) -> tuple[Matrix, Matrix]:
    near = v.astype(np.float16)
    infinity = np.float16(np.inf)
    down = np.where(near > v, np.nextafter(near, -infinity), near)
    up = np.where(down < v, np.nextafter(down, infinity), down)
    return down.astype(np.float32), up.astype(np.float32)


def _neighbours_bf16(v: Matrix) -> tuple[Matrix, Matrix]:
    bits = np.ascontiguousarray(v).view(np.uint32)
    inner = bits & np.uint32(0xFFFF0000)  # neighbour towards zero
    outer = np.where(inner == bits, inner, inner + np.uint32(0x10000))
    is_negative = bits >> np.uint32(31) == 1
    down = np.where(is_negative, outer, inner).view(np.float32)
    return down, np.where(is_negative, inner, outer).view(np.float32)


def round_rows(config: TableConfig, keys: Sequence[int], weights: Matrix, call: int) -> Matrix:
    """Return a call's weights (n, dim) as rows of the table store and return them."""
    result: Matrix = weights.copy()
    start = 0
    for i, segment in enumerate(segments_of(config)):
        columns = slice(start, start + segment.dim)
        storage = storage_of(config, i)
        if config.kind == "serving":
            result[:, columns] = decode(encode(weights[:, columns], storage), storage, segment.dim)
        elif isinstance(storage, str) and storage != "fp32":
            at = np.arange(columns.start, columns.stop)
            assert config.seed is not None
            numbers = np.array(keys, np.int64)
            u = counter_random.uniform(config.seed, numbers, at, stream=1, call=call)
            result[:, columns] = round_randomly(weights[:, columns], u, storage)
        start = columns.stop
    return result


def encode(weights: Matrix, storage: Storage) -> torch.Tensor:
    """Encode weights as `codecs.encode` does, in numpy."""
    if isinstance(storage, FixedR8):
        return torch.from_numpy(_quanta(weights, storage).astype(np.int8))
    if isinstance(storage, OneBit):
        return torch.from_numpy(np.packbits(weights > 0, axis=1, bitorder="little"))
    if storage == "fp16":
        return torch.from_numpy(np.clip(weights, -_MAX_FP16, _MAX_FP16).astype(np.float16))
    if storage == "bf16":
        values = torch.from_numpy(np.clip(weights, -_MAX_BF16, _MAX_BF16))
        return values.to(torch.bfloat16)
    return torch.from_numpy(weights.copy())


def decode(codes: torch.Tensor, storage: Storage, dim: int) -> Matrix:
    """Decode codes as `codecs.decode` does, in numpy."""
    weights: Matrix
    if isinstance(storage, FixedR8):
        weights = codes.numpy().astype(np.float32) * np.float32(storage.unit)
        return weights
    if isinstance(storage, OneBit):
        bits = np.unpackbits(codes.numpy(), axis=1, count=dim, bitorder="little")
        amplitude = np.float32(storage.amplitude)
        weights = np.where(bits == 1, amplitude, -amplitude)
        return weights
    weights = codes.to(torch.float32).numpy().copy()
    return weights


def _quanta(x: Matrix, code: FixedR8) -> Matrix:
    """Return the nearest multiples of the unit, as whole numbers without -0; NaN becomes 0."""
    unit = np.float32(code.unit)
    half = unit / np.float32(2)
    with np.errstate(all="ignore"):
        q = np.trunc((x + np.where(x >= 0, half, -half)) / unit)
    zero = np.float32(0)
    clipped = np.clip(q, np.float32(-128), np.float32(127)) + zero
    quanta: Matrix = np.where(np.isnan(q), zero, clipped)
    return quanta


def view_rows(config: TableConfig, weights: Matrix, step: int) -> Matrix:
    """Return the weights that a lookup at a step returns for stored weights (n, dim)."""
    if config.kind == "serving":
        return weights
    result: Matrix = weights.copy()
    start = 0
    for segment in segments_of(config):
        columns = slice(start, start + segment.dim)
        if segment.view is not None:
            result[:, columns] = _view(weights[:, columns], segment.view, step)
        start = columns.stop
    return result


def _view(weights: Matrix, view: View, step: int) -> Matrix:
    values: Matrix
    if isinstance(view, FixedR8):
        values = _quanta(weights, view) * np.float32(view.unit)
    else:
        values = np.float32(view.amplitude) * tanh(np.float32(view.scale(step)) * weights)
    return values


def view_gradient(view: View | None, weights: Matrix, grads: Matrix, step: int) -> Matrix:
    """Return the gradient of the weights from the gradient of the viewed weights."""
    if not isinstance(view, OneBit):
        return grads
    scale, one = np.float32(view.scale(step)), np.float32(1)
    y = tanh(scale * weights)
    slope = np.float32(view.amplitude) * scale * (one - y * y)
    limit = np.float32(np.finfo(np.float32).max)
    result: Matrix = np.clip(grads * slope, -limit, limit)
    return result


def tanh(x: NDArray[Any]) -> Matrix:
    """Return tanh by basic operations only (Cephes), so that every table gets equal bits.

    The relative error is below 1e-6.
    """
    x = np.asarray(x, np.float32)
    z = np.minimum(abs(x), np.float32(10))  # tanh rounds to 1 from about 9 on
    large = np.float32(1) - np.float32(2) / (_exp(z + z) + np.float32(1))
    s = z * z
    p = np.float32(-5.70498872745e-3)
    for c in (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
        p = p * s + np.float32(c)
    small = p * s * z + z
    result: Matrix = np.copysign(np.where(z >= np.float32(0.625), large, small), x)
    return result


def _exp(x: Matrix) -> Matrix:
    """Return e^x for x in [0, 20]."""
    n = np.floor(x * np.float32(1.44269504088896341) + np.float32(0.5))
    x = x - n * np.float32(0.693359375)
    x = x - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * x + np.float32(c)
    power = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    result: Matrix = (p * (x * x) + x + np.float32(1)) * power
    return result
