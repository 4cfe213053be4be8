from monolith.native_training.optimizers import shampoo
from monolith.optim import shampoo as ours


def test_the_import_path_has_the_names():
    assert shampoo.ShampooOptimizer is ours.ShampooOptimizer
    assert shampoo.eigen_inverse_root is ours.eigen_inverse_root
    assert shampoo.apply_sparse_precond is ours.apply_sparse_precond
