"""The published formulas of the sparse optimizers for one row, in float64 and without tricks.

Written from the formulas, not from the implementations: an oracle for both of them.
"""

from collections import defaultdict

import numpy as np

sqrt, norm = np.sqrt, np.linalg.norm


class OracleTable:
    """Rows as dicts; an optimizer step per key of a batch of distinct keys."""

    def __init__(self, optimizer, initial):
        self.optimizer = optimizer
        self.rule = RULES[type(optimizer).__name__]
        self.rows = defaultdict(lambda: {"w": np.array(initial, np.float64), "t": 0, "s": {}})

    def apply(self, keys, grads, step):
        for key, grad in zip(keys.tolist(), grads.numpy().astype(np.float64), strict=True):
            row = self.rows[key]
            row["t"] += 1
            row["step"] = step
            rate = self.optimizer.rate(step)
            if rate > 0:
                row["w"] = self.rule(self.optimizer, row, row["w"], grad, rate)


def state(row, name, initial=0.0):
    """State of a row, (dim,); made at its first use."""
    return row["s"].setdefault(name, np.full_like(row["w"], initial))


def sgd(o, row, w, g, lr):
    return w - lr * g


def adagrad(o, row, w, g, lr):
    g = g + o.weight_decay_factor * w
    n = row["s"]["n"] = state(row, "n", o.initial_accumulator_value) + g**2
    return w - lr * g / sqrt(n)


def dynamic_wd_adagrad(o, row, w, g, lr):
    if not o.decouple_weight_decay:
        return adagrad(o, row, w, g, lr)
    n = row["s"]["n"] = state(row, "n", o.initial_accumulator_value) + g**2
    return w - lr * g / sqrt(n) - lr * o.weight_decay_factor * w


def row_wise_adagrad(o, row, w, g, lr):
    s = row["s"]["s"] = state(row, "s", o.initial_accumulator_value) + (g**2).mean()
    return w - lr * g / (sqrt(s) + o.epsilon)


def group_adagrad(o, row, w, g, lr):
    g = g + o.weight_decay_factor * w
    s = row["s"]["s"] = state(row, "s", o.initial_accumulator_value) + (g**2).max()
    length = lr / (o.beta + sqrt(s))
    y = g - w / length
    if norm(y) <= o.l2_regularization:
        return np.zeros_like(w)
    return -length * (norm(y) - o.l2_regularization) / norm(y) * y


def ftrl_sums(o, row, w, g, lr):
    old = state(row, "n", o.initial_accumulator_value)
    n = row["s"]["n"] = old + g**2
    z = row["s"]["z"] = state(row, "z") + g - (sqrt(n) - sqrt(old)) / lr * w
    return z, sqrt(n) + o.beta + o.l2_regularization * lr


def ftrl(o, row, w, g, lr):
    z, divisor = ftrl_sums(o, row, w, g, lr)
    shrunk = lr * (np.sign(z) * o.l1_regularization - z) / divisor
    return np.where(abs(z) <= o.l1_regularization, 0, shrunk)


def group_ftrl(o, row, w, g, lr):
    z, divisor = ftrl_sums(o, row, w, g, lr)
    if norm(z) <= o.l1_regularization:
        return np.zeros_like(w)
    return lr * z * (o.l1_regularization - norm(z)) / norm(z) / divisor


def adadelta(o, row, w, g, lr):
    g, r = g + o.weight_decay_factor * w, o.averaging_ratio
    a = row["s"]["a"] = r * state(row, "a") + (1 - r) * g**2
    u = state(row, "u")
    x = sqrt(u + o.epsilon) / sqrt(a + o.epsilon) * g
    row["s"]["u"] = r * u + (1 - r) * x**2
    return w - lr * x


def adam(o, row, w, g, lr):
    g, t = g + o.weight_decay_factor * w, row["t"]
    m = row["s"]["m"] = o.beta1 * state(row, "m") + (1 - o.beta1) * g
    v = row["s"]["v"] = o.beta2 * state(row, "v") + (1 - o.beta2) * g**2
    if type(o).__name__ == "AMSGrad":
        v = row["s"]["x"] = np.maximum(state(row, "x"), v)
    length = lr * sqrt(1 - o.beta2**t) / (1 - o.beta1**t)
    direction = (1 - o.beta1) * g + o.beta1 * m if o.use_nesterov else m
    return w - length * direction / (sqrt(v) + o.epsilon)


def momentum(o, row, w, g, lr):
    old = state(row, "n")
    n = row["s"]["n"] = o.momentum * old - lr * (g + o.weight_decay_factor * w)
    return w - o.momentum * old + (1 + o.momentum) * n if o.use_nesterov else w + n


def moving_average(o, row, w, g, lr):
    return o.momentum * w + (1 - o.momentum) * g


def rmsprop(o, row, w, g, lr):
    g = g + o.weight_decay_factor * w
    share = 1 - o.momentum if type(o).__name__ == "RMSprop" else 1
    n = row["s"]["n"] = o.momentum * state(row, "n") + share * g**2
    return w - lr * g / (sqrt(n) + 1)


def batch_softmax(o, row, w, g, lr):
    last, row["s"]["a"] = state(row, "a"), np.full_like(w, row["step"])
    return (1 - lr) * w + lr * (row["step"] - last)


RULES = {
    "SGD": sgd,
    "Adagrad": adagrad,
    "DynamicWdAdagrad": dynamic_wd_adagrad,
    "RowWiseAdagrad": row_wise_adagrad,
    "GroupAdagrad": group_adagrad,
    "FTRL": ftrl,
    "GroupFTRL": group_ftrl,
    "Adadelta": adadelta,
    "Adam": adam,
    "AMSGrad": adam,
    "Momentum": momentum,
    "MovingAverage": moving_average,
    "RMSprop": rmsprop,
    "RMSpropV2": rmsprop,
    "BatchSoftmax": batch_softmax,
}
