"""Import path of the reference system; see `monolith.util.paths`."""

from monolith.util.paths import find_main, get_libops_path

__all__ = ["find_main", "get_libops_path"]
