"""Turn states of objects into JSON and tensors, and back: nested dictionaries, lists, tuples."""

import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from monolith.checkpoint.dense_tensors import join_tensors
from monolith.errors import DataLossError

STATES = "saveables"
"""Key of the trainer's document: states of objects, by name."""

_TENSOR, _TUPLE, _ITEMS, _FLOAT = "$tensor", "$tuple", "$items", "$float"
_MARKS = (_TENSOR, _TUPLE, _ITEMS, _FLOAT)


@runtime_checkable
class Stateful(Protocol):
    """An object that returns and takes its state, such as an optimizer of torch.

    `flatten_state` says what a state may hold.
    """

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Go on from a state."""


def flatten_states(
    objects: Mapping[str, Stateful],
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the states of objects as JSON, by name, and the tensors of all of them.

    Raises:
        TypeError: a state holds something that `flatten_state` does not take.
        ValueError: tensors of two states have one name.
    """
    flat = {name: flatten_state(value.state_dict(), name) for name, value in objects.items()}
    tensors = join_tensors("[flatten_states]", *(tensors for _, tensors in flat.values()))
    return {name: tree for name, (tree, _) in flat.items()}, tensors


def flatten_state(state: Any, name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return a state as JSON, and its tensors by name.

    Args:
        state: dictionaries with keys of str, int, float or bool, lists, tuples, tensors, and what
            JSON has.
        name: what the names of tensors begin with.

    Raises:
        TypeError: the state holds something else.

    Example:
        >>> flatten_state({"state": {0: (torch.ones(1), 3)}}, "adam")  # doctest: +ELLIPSIS
        ({'state': {'$items': [[0, {'$tuple': [{'$tensor': 'adam/state/0/0'}, 3]}]]}}, {...})
    """
    tensors: dict[str, torch.Tensor] = {}
    return _flat(state, name, tensors), tensors


def _flat(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(float(value))}  # JSON has no such numbers
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, torch.Tensor):
        while path in tensors:  # keys such as "a/b", or both 0 and "0"
            path += "~"
        tensors[path] = value.detach()
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        items = [[key, _flat(item, f"{path}/{key}", tensors)] for key, item in value.items()]
        if all(isinstance(key, str) and key not in _MARKS for key in value):
            return dict(items)
        for key in value:
            if not isinstance(key, str | bool | int | float):
                raise TypeError(
                    f"[flatten_state] expected keys of str or numbers, got {key!r} ({path})"
                )
        return {_ITEMS: items}
    if isinstance(value, list | tuple):
        parts = [_flat(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
        return parts if isinstance(value, list) else {_TUPLE: parts}
    raise TypeError(
        f"[flatten_state] expected tensors, dictionaries, lists and what JSON has, got "
        f"{type(value).__name__} ({path})"
    )


def unflatten_state(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state that `flatten_state` took apart.

    Raises:
        DataLossError: a tensor is missing.
    """
    if isinstance(value, list):
        return [unflatten_state(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        if value[_TENSOR] not in tensors:
            raise DataLossError(f"[unflatten_state] expected tensor {value[_TENSOR]!r}, got none")
        return tensors[value[_TENSOR]]
    if _TUPLE in value:
        return tuple(unflatten_state(item, tensors) for item in value[_TUPLE])
    if _ITEMS in value:
        return {key: unflatten_state(item, tensors) for key, item in value[_ITEMS]}
    if _FLOAT in value:
        return float(value[_FLOAT])
    return {key: unflatten_state(item, tensors) for key, item in value.items()}
