"""Names made from other names."""

import posixpath
import re

# Before the last capital of "HTTPServer", and between lower and upper case.
_CAMEL_BOUNDARY = re.compile(r"(?<=.)(?=[A-Z][a-z0-9])|(?<=[a-z])(?=[A-Z])")


def to_snake_case(name: str) -> str:
    """Write a name in camel case with underscores; a private one gets the prefix `private`.

    Example:
        >>> to_snake_case("HTTPServer"), to_snake_case("_Foo")
        ('http_server', 'private__foo')
    """
    snake = _CAMEL_BOUNDARY.sub("_", name).lower()
    return f"private{snake}" if snake.startswith("_") else snake


def debugging_info_path(model_dir: str) -> str:
    """Where a run keeps its settings, versions and table configs, as JSON."""
    return posixpath.join(model_dir, "debugging_info.pb")


def module_tree_path(model_dir: str) -> str:
    """Where a run keeps the tree of its modules and parameters, as JSON."""
    return posixpath.join(model_dir, "meta_graph_for_debugging.pb")


class UniqueNames:
    """Names that were given away; a name that is taken gets a number. For one thread at a time.

    Example:
        >>> names = UniqueNames()
        >>> names.take("dense"), names.take("dense"), names.take("dense_1")
        ('dense', 'dense_1', 'dense_1_1')
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # of each name that is taken, the last number behind it

    def take(self, name: str) -> str:
        """Give away a name, or the first of `name_1`, `name_2`, ... that is free."""
        number = self._numbers.get(name, -1) + 1
        while (taken := f"{name}_{number}" if number else name) in self._numbers:
            number += 1
        self._numbers[name] = number
        self._numbers.setdefault(taken, 0)
        return taken
