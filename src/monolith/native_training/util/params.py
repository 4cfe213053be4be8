"""Hold named parameters, which can nest, until a model is built from them."""

import copy
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from typing_extensions import Self


_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LIST_ITEM = re.compile(r"(.+)\[(-?\d+)\]")

_ParamsT = TypeVar("_ParamsT", bound="Params")


class Params:
    """Parameters by name, in the order of their definition; attributes and items at once.

    Only defined names exist, so that a typing mistake is an error. A parameter with the name of a
    method is reached as an item. Dotted names reach into nested parameters, `layers[1].dim` into a
    list. For one thread at a time.

    Example:
        >>> dense = Params()
        >>> dense.define("units", 8, "Width of the output.")
        >>> model = Params()
        >>> model.define("dense", dense, "The last layer.")
        >>> model.set(**{"dense.units": 16}).dense.units
        16
        >>> print(model)
        {
          dense: {
            units: 16
          }
        }
    """

    _values: dict[str, Any]
    _descriptions: dict[str, str]
    _is_frozen: bool

    def __init__(self) -> None:
        self.__dict__.update(_values={}, _descriptions={}, _is_frozen=False)

    def define(self, name: str, default: Any, description: str) -> None:
        """Add a parameter.

        Raises:
            AssertionError: the name is not `[a-z][a-z0-9_]*`.
            AttributeError: the parameter exists.
            TypeError: the parameters are frozen.
        """
        self._check_mutable()
        if not is_param_name(name):
            raise AssertionError(f"[Params.define] expected a name {_NAME.pattern}, got {name!r}")
        if name in self:
            raise AttributeError(f"Parameter {name} is already defined")
        self._values[name] = default
        self._descriptions[name] = description

    def get(self, name: str) -> Any:
        """The value of a parameter, also of a nested one.

        Raises:
            AttributeError: it does not exist; the text has similar names.
            AssertionError: the path goes through something that holds no parameters.
        """
        holder, key = self._holder(name)
        return holder[key]

    def set(self, **values: Any) -> "Self":
        """Write parameters, also nested ones: `params.set(**{"dense.units": 16})`.

        Raises:
            AttributeError, AssertionError: see `get`.
            TypeError: the parameters are frozen.
        """
        if self._is_frozen:
            raise TypeError(f"This Params instance is immutable: {self}")
        for name, value in values.items():
            holder, key = self._holder(name)
            holder[key] = value
        return self

    def delete(self, *names: str) -> "Self":
        """Remove parameters, also nested ones.

        Raises:
            AttributeError, AssertionError: see `get`.
            TypeError: the parameters are frozen.
        """
        self._check_mutable()
        for name in names:
            holder, key = self._holder(name)
            del holder[key]
        return self

    def describe(self, name: str) -> str:
        """The description that a parameter was defined with."""
        self._check_defined(name)
        return self._descriptions[name]

    def items(self) -> list[tuple[str, Any]]:
        """Names and values, in the order of definition."""
        return list(self._values.items())

    def freeze(self) -> None:
        """Refuse changes from now on, in copies too. Nested parameters stay as they are."""
        self.__dict__["_is_frozen"] = True

    def copy(self) -> "Self":
        """A copy with copies of all values but tensors, which both share."""
        return copy.deepcopy(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also asked for while a copy or a pickle is put together
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getitem__(self, name: str) -> Any:
        self._check_defined(name)
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._check_mutable()
        self._check_defined(name)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        self._check_mutable()
        self._check_defined(name)
        del self._values[name], self._descriptions[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._values})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Params) and _equal(self._values, other._values)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Self":
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        memo.update({id(tensor): tensor for tensor in _tensors(self._values)})
        clone.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return clone

    def __str__(self) -> str:
        return _text(self, "")

    def _check_mutable(self) -> None:
        if self._is_frozen:
            raise TypeError("This Params instance is immutable.")

    def _check_defined(self, name: str, path: str | None = None) -> None:
        if name not in self:
            similar = sorted(known for known in self if _similarity(name, known) > 0.5)
            hint = f" (did you mean: [{','.join(similar)}])" if similar else ""
            raise AttributeError(f"{path or name}{hint}")

    def _holder(self, path: str) -> tuple[Any, Any]:
        """The parameters or list that holds what a path leads to, and its name or index there."""
        holder: Any = self
        key: Any = None
        for part in path.split("."):
            if key is not None:
                holder = holder[key]
            if not isinstance(holder, Params):
                raise AssertionError(f"Cannot introspect {type(holder)} for {path}")
            listed = _LIST_ITEM.fullmatch(part)
            key = listed[1] if listed else part
            holder._check_defined(key, path)
            if listed:
                holder, key = holder[key], int(listed[2])
                if not isinstance(holder, list | tuple):
                    raise AssertionError(f"Cannot introspect {type(holder)} for {path}")
                if not -len(holder) <= key < len(holder):
                    raise AttributeError(path)
        return holder, key


def is_param_name(name: object) -> bool:
    """Whether a parameter can have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def copy_params_to(from_p: Params, to_p: _ParamsT, skip: Collection[str] | None = None) -> _ParamsT:
    """Write the values of all parameters but `skip` into others, nested parameters as copies.

    Returns:
        The others.

    Raises:
        AttributeError: they lack one.
    """
    for name, value in from_p.items():
        if name not in (skip or ()):
            to_p[name] = value.copy() if isinstance(value, Params) else value
    return to_p


def update_params(ips: Params, args: dict[str, Any]) -> None:
    """Move `args` into parameters of the same name, nested ones too; others stay in `args`."""
    for name, value in ips.items():
        if name in args:
            ips[name] = args.pop(name)
        elif isinstance(value, Params):
            update_params(value, args)


def _similarity(name: str, known: str) -> float:
    """Share of the pieces of three letters of a name, but its last one, that another has."""
    pieces = [name[at : at + 3] for at in range(len(name) - 3)]
    return sum(piece in known for piece in pieces) / max(len(pieces), 1)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors(inner)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor | np.ndarray) or isinstance(b, torch.Tensor | np.ndarray):
        same_kind = type(a) is type(b) and a.shape == b.shape and a.dtype == b.dtype
        return same_kind and bool((a == b).all())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and type(a) is type(b):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _text(params: Params, indent: str) -> str:
    lines = [f"{indent}  {name}: {_value_text(params[name], indent)}" for name in sorted(params)]
    return "\n".join(["{", *lines, f"{indent}}}"])


def _value_text(value: Any, indent: str) -> str:
    if isinstance(value, Params):
        return _text(value, f"{indent}  ")
    return f'"{value}"' if isinstance(value, str) else str(_plain(value))


def _plain(value: Any) -> Any:
    """A value in which parameters are dictionaries, and all dictionaries are sorted."""
    if isinstance(value, Params | dict):
        return {key: _plain(inner) for key, inner in sorted(value.items(), key=_first_text)}
    if isinstance(value, list | tuple):
        plain = [_plain(inner) for inner in value]
        return plain if isinstance(value, list) else tuple(plain)
    return value


def _first_text(item: tuple[Any, Any]) -> str:
    return str(item[0])
