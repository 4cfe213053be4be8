"""Optimizers: one `step()` for the dense parameters and the tables of a model."""

from monolith.optim.optimizer import Optimizer

__all__ = ["Optimizer"]
