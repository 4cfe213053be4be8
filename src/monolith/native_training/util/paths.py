"""Find where the package is installed, from the path of this file; standard library only."""

import os

_PACKAGE = "monolith"
# In this order; the first marker found decides.
_MARKERS = ("__main__", "site-packages", _PACKAGE)


def find_main() -> str:
    """Find the directory that contains the package: of a bundle, an installation or a checkout.

    Returns:
        The path up to and including the last `__main__` or `site-packages` directory, else the
        path before the last `monolith` directory.

    Raises:
        ValueError: no such directory is part of this file's path, or it holds no package.

    Example:
        >>> import os
        >>> os.path.isdir(os.path.join(find_main(), "monolith"))
        True
    """
    path = os.path.abspath(__file__)
    portable = path.replace(os.sep, "/")
    for name in _MARKERS:
        # Nested installations repeat a name: the last one is ours.
        before, marker, _ = portable.rpartition(f"/{name}/")
        if not marker:
            continue
        base = before if name == _PACKAGE else f"{before}/{name}"
        if os.path.isdir(f"{base}/{_PACKAGE}"):
            return base.replace("/", os.sep)
        break
    raise ValueError(
        f"[find_main] expected one of {_MARKERS} in the path of this file and a directory "
        f"{_PACKAGE!r} below it, got {path!r}; install the package or run it from its checkout"
    )


def get_libops_path(lib_name: str) -> str:
    """Return the path of a bundled library, given relative to the directory of `find_main`.

    Args:
        lib_name: path below that directory, such as `monolith/libexample.so`.

    Raises:
        ValueError: see `find_main`.

    Example:
        >>> get_libops_path("monolith/libexample.so").endswith("libexample.so")
        True
    """
    return os.path.join(find_main(), lib_name)
