"""Update rule of every sparse optimizer, in numpy float32; each operation rounds once.

An optimizer is one function here, registered by its spec class. It changes weights and state in
place; the caller skips segments whose learning rate is 0. Results beyond float32 become the largest
float32, and a gradient at most the largest number whose square fits: rows stay finite, so no rule
creates NaN.
"""

from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monolith.table import optimizers as specs
from monolith.table.initializers import MAX_FLOAT32
from monolith.table.key_sums import Matrix, row_sum

State = dict[str, NDArray[Any]]
"""State column name -> (n, size)."""

_ZERO, _ONE = np.float32(0), np.float32(1)
_MAX = np.float32(MAX_FLOAT32)
_ROOT_MAX = np.float32((1 - 2.0**-24) * 2.0**64)  # largest number whose square fits


class Call(NamedTuple):
    """Arguments of one call for n rows of a segment.

    Attributes:
        grads: sum of each key's gradients, (n, dim).
        rate: learning rate, above 0.
        step: training step.
    """

    grads: Matrix
    rate: np.float32
    step: int


@singledispatch
def optimizer_step(optimizer: object, w: Matrix, state: State, call: Call) -> None:
    """Apply one step to n rows of a segment.

    Args:
        optimizer: spec of the segment.
        w: weights (n, dim), changed in place.
        state: state, changed in place.
        call: gradients, rate and step.
    """
    raise TypeError(f"[optimizer_step] expected an optimizer spec, got {optimizer!r}")


def _finite(x: Any) -> Any:
    return np.clip(x, -_MAX, _MAX)


def _decay(w: Matrix, g: Matrix, factor: float | np.float32) -> Matrix:
    """Return the gradient with weight decay, small enough to be squared."""
    decayed: Matrix = np.clip(g + np.float32(factor) * w, -_ROOT_MAX, _ROOT_MAX)
    return decayed


def _where_positive(divisor: Matrix, quotient: Matrix) -> Matrix:
    """Return the quotient, or 0 for a divisor of 0."""
    return np.where(divisor > 0, quotient, _ZERO)


@optimizer_step.register
def _sgd(optimizer: specs.SGD, w: Matrix, state: State, call: Call) -> None:
    w[:] = _finite(w - call.rate * call.grads)


@optimizer_step.register
def _momentum(optimizer: specs.Momentum, w: Matrix, state: State, call: Call) -> None:
    n, mu = state["n"], np.float32(optimizer.momentum)
    h = _finite(call.grads + np.float32(optimizer.weight_decay_factor) * w)
    new = _finite(mu * n - call.rate * h)
    if optimizer.use_nesterov:
        w[:] = _finite(_finite(w - mu * n) + _finite((_ONE + mu) * new))
    else:
        w[:] = _finite(w + new)
    n[:] = new


@optimizer_step.register
def _moving_average(optimizer: specs.MovingAverage, w: Matrix, state: State, call: Call) -> None:
    mu = np.float32(optimizer.momentum)
    w[:] = _finite(mu * w + (_ONE - mu) * call.grads)


@optimizer_step.register
def _batch_softmax(optimizer: specs.BatchSoftmax, w: Matrix, state: State, call: Call) -> None:
    last = state["global_step"]
    passed = (np.int64(call.step) - last).astype(np.float32)
    w[:] = _finite(_finite((_ONE - call.rate) * w) + _finite(call.rate * passed))
    last[:] = call.step


@optimizer_step.register
def _adagrad(optimizer: specs.Adagrad, w: Matrix, state: State, call: Call) -> None:
    n = state["norm"]
    h = _decay(w, call.grads, optimizer.weight_decay_factor)
    n[:] = _finite(n + h * h)
    w[:] = _finite(w - _where_positive(n, call.rate * h / np.sqrt(n)))


@optimizer_step.register
def _dynamic_wd_adagrad(
    optimizer: specs.DynamicWdAdagrad, w: Matrix, state: State, call: Call
) -> None:
    n, factor = state["norm"], np.float32(optimizer.weight_decay_factor)
    coupled, shrink = factor, _ZERO
    if optimizer.decouple_weight_decay:
        coupled, shrink = _ZERO, _finite(call.rate * factor)
    h = _decay(w, call.grads, coupled)
    n[:] = _finite(n + h * h)
    stepped = _finite(w - _where_positive(n, call.rate * h / np.sqrt(n)))
    w[:] = _finite(stepped - shrink * w)


@optimizer_step.register
def _row_wise_adagrad(optimizer: specs.RowWiseAdagrad, w: Matrix, state: State, call: Call) -> None:
    s = state["norm"]
    h = np.clip(call.grads, -_ROOT_MAX, _ROOT_MAX)
    s[:] = _finite(s + row_sum(h * h) / np.float32(w.shape[1]))
    divisor = np.sqrt(s) + np.float32(optimizer.epsilon)
    w[:] = _finite(w - _where_positive(divisor, call.rate * h / divisor))


@optimizer_step.register
def _group_adagrad(optimizer: specs.GroupAdagrad, w: Matrix, state: State, call: Call) -> None:
    s, l2 = state["grad_square_sum"], np.float32(optimizer.l2_regularization)
    h = _decay(w, call.grads, optimizer.weight_decay_factor)
    s[:] = _finite(s + (h * h).max(axis=1, keepdims=True))
    divisor = np.float32(optimizer.beta) + np.sqrt(s)
    length = _finite(call.rate / divisor)
    y = _finite(h - w / length)
    norm = _finite(np.sqrt(row_sum(y * y)))
    new = np.where(norm <= l2, _ZERO, _finite(-length * ((norm - l2) / norm) * y))
    w[:] = np.where((divisor > 0) & (length > 0), new, w)  # no step for a length of 0


@optimizer_step.register
def _ftrl(optimizer: specs.FTRL, w: Matrix, state: State, call: Call) -> None:
    z, l1 = state["zero"], np.float32(optimizer.l1_regularization)
    divisor = _ftrl_sums(optimizer, w, state, call)
    shrunk = np.where(z > 0, l1, -l1) - z
    new = np.where(abs(z) <= l1, _ZERO, _finite(call.rate * shrunk / divisor))
    w[:] = _where_positive(divisor, new)


@optimizer_step.register
def _group_ftrl(optimizer: specs.GroupFTRL, w: Matrix, state: State, call: Call) -> None:
    z, l1 = state["zero"], np.float32(optimizer.l1_regularization)
    divisor = _ftrl_sums(optimizer, w, state, call)
    norm = _finite(np.sqrt(row_sum(z * z)))
    new = np.where(norm <= l1, _ZERO, _finite(call.rate * z * ((l1 - norm) / norm) / divisor))
    w[:] = _where_positive(divisor, new)


def _ftrl_sums(optimizer: specs.FTRL, w: Matrix, state: State, call: Call) -> Matrix:
    """Update z and n; return the divisor of the weights."""
    z, n = state["zero"], state["norm"]
    g = np.clip(call.grads, -_ROOT_MAX, _ROOT_MAX)
    new = _finite(n + g * g)
    sigma = _finite((np.sqrt(new) - np.sqrt(n)) / call.rate)
    z[:] = _finite(z + g - sigma * w)
    n[:] = new
    divisor: Matrix = _finite(
        np.sqrt(new)
        + np.float32(optimizer.beta)
        + np.float32(optimizer.l2_regularization) * call.rate
    )
    return divisor


@optimizer_step.register
def _adadelta(optimizer: specs.Adadelta, w: Matrix, state: State, call: Call) -> None:
    a, u = state["accum"], state["accum_update"]
    r, epsilon = np.float32(optimizer.averaging_ratio), np.float32(optimizer.epsilon)
    h = _decay(w, call.grads, optimizer.weight_decay_factor)
    a[:] = _finite(r * a + (_ONE - r) * (h * h))
    divisor = _finite(a + epsilon)
    ratio = _finite(np.sqrt(_finite(u + epsilon)) / np.sqrt(divisor))
    x = _where_positive(divisor, np.clip(ratio * h, -_ROOT_MAX, _ROOT_MAX))
    w[:] = _finite(w - call.rate * x)
    u[:] = _finite(r * u + (_ONE - r) * (x * x))


@optimizer_step.register(specs.Adam)
@optimizer_step.register(specs.AMSGrad)
def _adam(optimizer: specs.Adam | specs.AMSGrad, w: Matrix, state: State, call: Call) -> None:
    m, v, p1, p2 = (state[name] for name in ("m", "v", "beta1_power", "beta2_power"))
    beta1, beta2 = np.float32(optimizer.beta1), np.float32(optimizer.beta2)
    length = _finite(call.rate * np.sqrt(_ONE - p2) / (_ONE - p1))
    h = _decay(w, call.grads, optimizer.weight_decay_factor)
    m[:] = _finite(m + (_ONE - beta1) * (h - m))
    v[:] = _finite(v + (_ONE - beta2) * (h * h - v))
    largest = v
    if "vhat" in state:
        largest = state["vhat"]
        largest[:] = np.maximum(largest, v)
    h_weight, m_weight = (_ONE - beta1, beta1) if optimizer.use_nesterov else (_ZERO, _ONE)
    direction = _finite(h_weight * h + m_weight * m)
    divisor = np.sqrt(largest) + np.float32(optimizer.epsilon)
    w[:] = _finite(w - _where_positive(divisor, length * direction / divisor))
    p1 *= beta1
    p2 *= beta2


@optimizer_step.register
def _rmsprop(optimizer: specs.RMSprop, w: Matrix, state: State, call: Call) -> None:
    n, mu = state["n"], np.float64(np.float32(optimizer.momentum))
    factor = np.float64(np.float32(optimizer.weight_decay_factor))
    h = np.clip(call.grads + factor * w.astype(np.float64), -_ROOT_MAX, _ROOT_MAX)
    n[:] = np.minimum(mu * n.astype(np.float64) + (1 - mu) * (h * h), np.float64(_MAX))
    root = np.sqrt(n.astype(np.float64))
    w[:] = _finite(w - np.float64(call.rate) * h / (root + 1))


@optimizer_step.register
def _rmsprop_v2(optimizer: specs.RMSpropV2, w: Matrix, state: State, call: Call) -> None:
    n, mu = state["n"], np.float32(optimizer.momentum)
    h = _decay(w, call.grads, optimizer.weight_decay_factor)
    n[:] = _finite(mu * n + h * h)
    w[:] = _finite(w - call.rate * h / (np.sqrt(n) + _ONE))
