"""The update rule of every sparse optimizer, in numpy float32; each operation rounds once.

An optimizer is one function here, registered by its spec class. It changes weights and state in
place; the caller leaves out segments whose learning rate is 0.
"""

from functools import singledispatch

import numpy as np

from monolith.embedding.optimizers import SGD, Adagrad
from monolith.embedding.reference_batch import Matrix

__all__ = ["optimizer_step"]


@singledispatch
def optimizer_step(
    optimizer: object, weights: Matrix, state: dict[str, Matrix], grads: Matrix, rate: np.float32
) -> None:
    """One step on n rows of a segment.

    Args:
        optimizer: spec of the segment.
        weights: (n, dim), changed in place.
        state: state column name -> (n, size), changed in place.
        grads: (n, dim), the sum of each key's gradients.
        rate: learning rate, above 0.
    """
    raise TypeError(f"[optimizer_step] expected an optimizer spec, got {optimizer!r}")


@optimizer_step.register
def _sgd(
    optimizer: SGD, weights: Matrix, state: dict[str, Matrix], grads: Matrix, rate: np.float32
) -> None:
    weights -= rate * grads


@optimizer_step.register
def _adagrad(
    optimizer: Adagrad, weights: Matrix, state: dict[str, Matrix], grads: Matrix, rate: np.float32
) -> None:
    norm = state["norm"]
    grads = grads + np.float32(optimizer.weight_decay_factor) * weights
    norm += grads * grads
    change = rate * grads / np.sqrt(norm)
    weights -= np.where(norm > 0, change, np.float32(0))
