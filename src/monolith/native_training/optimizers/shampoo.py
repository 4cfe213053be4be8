"""Give the dense optimizer Shampoo."""

from monolith.optim.shampoo import ShampooOptimizer, apply_sparse_precond, eigen_inverse_root

__all__ = [
    "ShampooOptimizer",
    "apply_sparse_precond",
    "eigen_inverse_root",
]
