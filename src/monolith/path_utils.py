"""Give the paths of the installation."""

from monolith.native_training.util.paths import find_main, get_libops_path

__all__ = ["find_main", "get_libops_path"]
