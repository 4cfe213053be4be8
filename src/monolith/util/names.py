"""Names derived from other names."""

import posixpath
import re

# A boundary is before the last capital of "HTTPServer", and between lower and upper case.
_CAMEL_BOUNDARY = re.compile(r"(?<=.)(?=[A-Z][a-z0-9])|(?<=[a-z])(?=[A-Z])")


def to_snake_case(name: str) -> str:
    """Return a name in camel case with underscores; a private name gets the prefix `private`.

    Example:
        >>> to_snake_case("HTTPServer"), to_snake_case("_Foo")
        ('http_server', 'private__foo')
    """
    snake = _CAMEL_BOUNDARY.sub("_", name).lower()
    return f"private{snake}" if snake.startswith("_") else snake


def debugging_info_path(model_dir: str) -> str:
    """Return the path of the JSON file with settings, versions and table configs of a run."""
    return posixpath.join(model_dir, "debugging_info.pb")


def module_tree_path(model_dir: str) -> str:
    """Return the path of the JSON file with the tree of modules and parameters of a run."""
    return posixpath.join(model_dir, "meta_graph_for_debugging.pb")


class UniqueNames:
    """Numbers a name that is used already. Not thread-safe.

    Example:
        >>> names = UniqueNames()
        >>> names.take("dense"), names.take("dense"), names.take("dense_1")
        ('dense', 'dense_1', 'dense_1_1')
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # last number after each used name

    def take(self, name: str) -> str:
        """Return the name, or the first unused one of `name_1`, `name_2`, ...; marks it as used."""
        number = self._numbers.get(name, -1) + 1
        while (unused := f"{name}_{number}" if number else name) in self._numbers:
            number += 1
        self._numbers[name] = number
        self._numbers.setdefault(unused, 0)
        return unused
