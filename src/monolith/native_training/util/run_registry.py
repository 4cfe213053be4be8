"""Hold collections, actions and names of the current run, or of the context outside of runs."""

import logging
from collections.abc import Iterable
from typing import Any

from monolith.train.driver import current_or_default_run

_log = logging.getLogger(__name__)

_SCALARS = (bool, int, float, str)


def add_to_collections(names: str | Iterable[str], value: Any) -> None:
    """Append a value to one or several collections.

    A `bool`, `int`, `float` or `str` is always added, another value only if it is truthy; what is
    left out is logged.

    Example:
        >>> from monolith.train.driver import Run
        >>> with Run().as_current():
        ...     add_to_collections(["sizes", "all"], 0)
        ...     add_to_collections("sizes", [])
        ...     get_collection("sizes"), get_collection("all"), get_collection("none")
        ([0], [0], None)
    """
    if not isinstance(value, _SCALARS) and not value:
        _log.info("value is %s, skip", value)
        return
    run = current_or_default_run()
    for name in [names] if isinstance(names, str) else names:
        run.add(name, value)


def get_collection(name: str) -> Any:
    """The values of a collection as a new list, or None if there are none.

    A name without a collection under which `run.metadata` has a scalar gives that scalar.
    """
    run = current_or_default_run()
    if values := run.collection(name):
        return list(values)
    scalar = run.metadata.get(name)
    return scalar if isinstance(scalar, _SCALARS) else None


def check_ops_dependence(op_names_1: str | Iterable[str], op_names_2: str | Iterable[str]) -> None:
    """Refuse recorded actions of group 2 that are needed to compute group 1.

    Args:
        op_names_1: one or several names of `run.action`.
        op_names_2: the same.

    Raises:
        Exception: an action of group 2 is needed.
        ValueError: a name of group 1 is not recorded.
    """
    first, second = _as_list(op_names_1), _as_list(op_names_2)
    needed = current_or_default_run().needed_by(first)
    if conflicts := [name for name in second if name in needed]:
        names = ", ".join(conflicts)
        raise Exception(
            f"Checking ops dependence, the ops [{', '.join(first)}] depend on ops [{names}], "
            f"which may cause ops [{names}] to be run twice."
        )


def _as_list(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def unique_name(name: str) -> str:
    """Take a name that is unique within the run: itself, else with `_1`, `_2` and so on.

    Example:
        >>> from monolith.train.driver import Run
        >>> with Run().as_current():
        ...     unique_name("dense"), unique_name("dense")
        ('dense', 'dense_1')
    """
    return current_or_default_run().unique_name(name)
