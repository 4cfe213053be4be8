"""Config of a table as JSON: written into every file, read back, and compared by field."""

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from monolith.errors import DataLossError, InvalidArgumentError
from monolith.table.config import Segment, TableConfig
from monolith.table.initializers import Constant, Normal, Uniform, Zeros
from monolith.table.optimizers import OPTIMIZERS
from monolith.table.optimizers.schedules import PolynomialDecay
from monolith.table.precision import FixedR8, OneBit
from monolith.table.rules import Budget, Expiry, MinCount, Probabilistic, SlidingFilter

_CLASSES = (
    *OPTIMIZERS,
    *(Budget, Constant, Expiry, FixedR8, MinCount, Normal, OneBit, PolynomialDecay, Probabilistic),
    *(Segment, SlidingFilter, TableConfig, Uniform, Zeros),
)
_SCHEDULE = "schedule"  # instead of a class: a function, whose name alone is stored
# Calls may have their own rates, and a budget depends on the machine: neither is a property of
# rows.
_WRONG = (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError)
_NOT_COMPARED = ("budget", "learning_rate", "warmup_steps")


def config_to_json(config: TableConfig) -> Any:
    """Return the config as `json.dumps` accepts it; a schedule function becomes its name."""
    return _to_json(config)


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if type(value) in _CLASSES:
        fields = [f.name for f in dataclasses.fields(value) if f.init]
        if type(value) is SlidingFilter and value.num_shards == 1:
            fields.remove("num_shards")  # as files have always been
        return {
            "class": type(value).__name__,
            **{name: _to_json(getattr(value, name)) for name in fields},
        }
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_to_json(item) for item in value]
    if callable(value):
        return {"class": _SCHEDULE, "name": getattr(value, "__qualname__", type(value).__name__)}
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def config_from_json(value: Any, where: str) -> TableConfig:
    """Return the config of JSON; `where` names the file in messages.

    Raises:
        InvalidArgumentError: a learning rate was a function, which cannot be read back.
        DataLossError: the value is no config.
    """
    try:
        config = _from_json(value)
        if not isinstance(config, TableConfig):
            raise TypeError(type(config).__name__)
    except _WRONG as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise DataLossError(
            f"[load_tables] expected a table config, got {error} ({where})"
        ) from error
    return config


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "class" not in value:
        return {int(key): _from_json(item) for key, item in value.items()}
    if value["class"] == _SCHEDULE:
        raise InvalidArgumentError(
            f"[load_tables] expected a learning rate that can be read back, got the function "
            f"{value['name']!r}; make the table yourself and use restore_tables"
        )
    classes = {known.__name__: known for known in _CLASSES}
    fields = {name: _from_json(item) for name, item in value.items() if name != "class"}
    return classes[value["class"]](**fields)


def first_difference(a: Any, b: Any, where: str = "") -> tuple[str, Any, Any] | None:
    """Return the first differing field of two JSON configs: (name, value in a, value in b).

    Learning rates and the budget are ignored.
    """
    if isinstance(a, dict) and isinstance(b, dict) and a.get("class") == b.get("class"):
        for name in sorted({*a, *b}):
            if name in _NOT_COMPARED:
                continue
            inner = f"{where}.{name}" if where else name
            difference = first_difference(a.get(name), b.get(name), inner)
            if difference:
                return difference
        return None
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = (
            first_difference(x, y, f"{where}[{i}]")
            for i, (x, y) in enumerate(zip(a, b, strict=True))
        )
        return next(filter(None, pairs), None)
    return None if a == b else (where, _brief(a), _brief(b))


def _brief(value: Any) -> Any:
    """Return a class as its name and a list as its length, for messages of one line."""
    if isinstance(value, dict):
        return value.get("class", value)
    return f"{len(value)} of them" if isinstance(value, list) else value
