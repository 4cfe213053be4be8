"""Flatten nested lists, tuples and dictionaries of tensors into one list, and restore them."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from monolith.native_training.ops.nested_ragged import NestedRagged
from monolith.ops.ragged import Ragged

_DENSE, _RAGGED, _PRESERVED = 0, 1, 2
_PLAIN = frozenset({torch.Tensor})


class NestedTensors:
    """A structure taken apart into tensors, which other tensors can fill again.

        ([d0], {"r": r0, "k": 3}, (d1,))   ->   [d0, d1, r0.values, r0.row_splits]

    Lists, tuples and dictionaries may be nested in any way; they are copied, never changed. An
    iterator, such as a generator or `zip`, is read once and becomes a list. A tensor that occurs
    several times is one entry. `bool`, `int`, `str`, `torch.nn.Parameter` and `None` stay where
    they are. Gradients pass through the tensors, which are not copied.

    Raises:
        ValueError: a leaf is ragged twice, or anything else.

    Example:
        >>> nested = NestedTensors({"a": torch.ones(2), "b": (Ragged.from_lists([[7], []]), 3)})
        >>> nested.get_tensors()
        [tensor([1., 1.]), tensor([7]), tensor([0, 1, 1])]
        >>> nested.get_nested_result([torch.zeros(2), torch.tensor([8]), torch.tensor([0, 1, 1])])
        {'a': tensor([0., 0.]), 'b': (Ragged(values=tensor([8]), row_splits=tensor([0, 1, 1])), 3)}
    """

    def __init__(self, nested: Any) -> None:
        self._dense: list[torch.Tensor] = []
        self._ragged: list[Ragged] = []
        self._preserved: list[Any] = []  # holds them: an id is taken again after its object is gone
        self._places: dict[int, tuple[int, int]] = {}  # id of a leaf -> its kind, place among them
        self._nested = _iterate(nested, self._add_tensor)

    def get_tensors(self) -> list[torch.Tensor]:
        """The dense tensors, then values and row splits of each ragged one; as first seen."""
        return self._dense + self._ragged_to_flatten(self._ragged)

    def get_nested_result(self, tensors: Iterable[torch.Tensor]) -> Any:
        """Return a new structure with these tensors in place of those of `get_tensors`.

        Shapes and dtypes are not checked.

        Raises:
            AssertionError: the number of tensors differs.
        """
        tensors = list(tensors)
        num_dense, num_ragged = len(self._dense), len(self._ragged)
        expected = num_dense + 2 * num_ragged
        if len(tensors) != expected:
            raise AssertionError(
                f"[NestedTensors.get_nested_result] expected {expected} tensors, got {len(tensors)}"
            )
        leaves = (
            tensors[:num_dense],
            self._flatten_to_ragged(tensors[num_dense:]),
            self._preserved,
        )

        def value_at(place: "_Place") -> Any:
            return leaves[place.kind][place.index]

        return _iterate(self._nested, value_at)

    def get_static(self, pending: Any) -> Any:
        """A new structure with `pending` in place of each tensor, dense or ragged.

        Example:
            >>> NestedTensors({"a": torch.ones(2), "b": 3}).get_static("?")
            {'a': '?', 'b': 3}
        """

        def value_at(place: "_Place") -> Any:
            return self._preserved[place.index] if place.kind == _PRESERVED else pending

        return _iterate(self._nested, value_at)

    def _add_tensor(self, leaf: Any) -> "_Place":
        """Register one leaf, once."""
        if id(leaf) not in self._places:
            kind = _kind_of(leaf)
            kept: list[Any] = (self._dense, self._ragged, self._preserved)[kind]
            self._places[id(leaf)] = (kind, len(kept))
            kept.append(leaf)
        return _Place(*self._places[id(leaf)])

    @staticmethod
    def _convert_ragged_to_tensors(ragged: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
        return ragged.values, ragged.row_splits

    @staticmethod
    def _convert_tensors_to_ragged(values: torch.Tensor, row_splits: torch.Tensor) -> Ragged:
        return Ragged._unchecked(values, row_splits)

    @classmethod
    def _ragged_to_flatten(cls, ragged: Iterable[Ragged]) -> list[torch.Tensor]:
        return [tensor for one in ragged for tensor in cls._convert_ragged_to_tensors(one)]

    @classmethod
    def _flatten_to_ragged(cls, tensors: Sequence[torch.Tensor]) -> list[Ragged]:
        pairs = zip(tensors[::2], tensors[1::2], strict=True)
        return [cls._convert_tensors_to_ragged(values, row_splits) for values, row_splits in pairs]


class _Place:
    """Stands for a leaf in the copied structure."""

    def __init__(self, kind: int, index: int) -> None:
        self.kind, self.index = kind, index


def snapshot(nested: Any) -> tuple[list[torch.Tensor], Any]:
    """Tensors of a structure that `NestedTensors` takes, and a copy of it on the same tensors.

    The dense tensors come first, then values and row splits of each ragged one.

    Raises:
        ValueError: as `NestedTensors` does.

    Example:
        >>> snapshot([torch.ones(1), {"k": 3}])
        ([tensor([1.])], [tensor([1.]), {'k': 3}])
    """
    dense: list[torch.Tensor] = []
    ragged: list[Ragged] = []

    def keep(leaf: Any) -> Any:
        kind = _kind_of(leaf)
        if kind == _DENSE:
            dense.append(leaf)
        elif kind == _RAGGED:
            pair = NestedTensors._convert_ragged_to_tensors(leaf)
            leaf = NestedTensors._convert_tensors_to_ragged(*pair)
            ragged.append(leaf)
        return leaf

    def copied(nested: Any) -> Any:
        kind = type(nested)
        if kind is not dict and kind is not list and kind is not tuple:
            return _iterate(nested, keep)
        values = nested.values() if kind is dict else nested
        if _PLAIN.issuperset(map(type, values)):  # most containers: without a call for each leaf
            dense.extend(values)
            return nested if kind is tuple else nested.copy()
        if kind is dict:
            return {key: copied(value) for key, value in nested.items()}
        return kind([copied(value) for value in nested])

    whole = copied(nested)
    return dense + NestedTensors._ragged_to_flatten(ragged), whole


def _kind_of(leaf: Any) -> int:
    # A parameter is a tensor too, but is not sent anywhere.
    if isinstance(leaf, bool | int | str | torch.nn.Parameter):
        return _PRESERVED
    if isinstance(leaf, torch.Tensor):
        return _DENSE
    if isinstance(leaf, Ragged):
        return _RAGGED
    if isinstance(leaf, NestedRagged):
        raise ValueError("Nested tensor doesn't support nested RaggedTensor.")
    raise ValueError(f"Tensor is not supported. {leaf}")


def _iterate(nested: Any, action: Callable[[Any], Any]) -> Any:
    """Return a copy of the structure with action(leaf) for every leaf; `None` is no leaf."""
    if nested is None:
        return None
    if isinstance(nested, dict):
        copied = {} if type(nested) is dict else copy.copy(nested)
        for key, value in nested.items():
            copied[key] = _iterate(value, action)
        return copied
    if isinstance(nested, list | Iterator):
        return [_iterate(item, action) for item in nested]
    if isinstance(nested, tuple):
        items = [_iterate(item, action) for item in nested]
        return type(nested)._make(items) if hasattr(nested, "_make") else tuple(items)
    return action(nested)
