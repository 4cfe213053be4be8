from monolith import optim
from monolith.native_training.optimizers import shampoo


def test_the_import_path_has_the_names():
    assert shampoo.ShampooOptimizer is optim.ShampooOptimizer
    assert shampoo.eigen_inverse_root is optim.eigen_inverse_root
    assert shampoo.apply_sparse_precond is optim.apply_sparse_precond
