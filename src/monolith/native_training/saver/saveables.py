"""What a saver saves: tensors by name, and objects with a state of their own, each on a device."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from monolith.checkpoint.dense_tensors import module_tensors
from monolith.checkpoint.state_tree import Stateful
from monolith.cluster.servers import LocalServer, LocalServers
from monolith.train.driver import current_or_default_run

VARIABLES = "variables"
"""Collection of a run with what a saver saves that is given nothing."""


@dataclass(frozen=True)
class NamedTensor:
    """A tensor and its name in checkpoints.

    Args:
        name: of the tensor.
        tensor: a parameter or buffer; a restore writes into it.
        device: label of its owner; that of the tensor if empty.
    """

    name: str
    tensor: torch.Tensor
    device: str = ""


@runtime_checkable
class Saveable(Stateful, Protocol):
    """An object with a state and a name; the position of an input, for example.

    An attribute `device`, if there is one, is the label of its owner.
    """

    name: str


Source = NamedTensor | Saveable | torch.nn.Module | LocalServer | LocalServers | Mapping[str, Any]
VarList = Source | Iterable[Source]


class Item(NamedTuple):
    """One thing that is saved: a tensor, or an object with a state."""

    name: str
    device: str
    value: "torch.Tensor | Stateful"


def collect_items(where: str, var_list: VarList | None) -> list[Item]:
    """Everything that is saved, by name.

    Args:
        where: begins the messages.
        var_list: modules, tensors by name, servers and saveables, or several of them; None: what
            the collection `VARIABLES` of the run holds.

    Raises:
        TypeError: something is none of these.
        ValueError: two things have one name.
    """
    if var_list is None:
        var_list = current_or_default_run().collection(VARIABLES)
    several = isinstance(var_list, list | tuple | set | frozenset | Iterator)
    sources: Iterable[Any] = var_list if several else [var_list]  # type: ignore[assignment]
    items = [item for source in sources for item in _items(where, source)]
    seen: dict[str, Item] = {}
    for item in items:
        if item.name in seen:
            raise ValueError(
                f"{where} expected each name once, got {item.name!r} twice; "
                "give a mapping of other names"
            )
        seen[item.name] = item
    return [seen[name] for name in sorted(seen)]


def _items(where: str, source: Any) -> Iterator[Item]:
    if isinstance(source, Mapping):
        for name, value in source.items():
            if isinstance(value, torch.nn.Module):
                yield from _module_items(where, f"{name}.", value)
            else:
                yield _named(where, name, value)
    elif isinstance(source, torch.nn.Module):
        yield from _module_items(where, "", source)
    elif isinstance(source, LocalServers):
        for index in range(len(source)):
            yield from _items(where, source[index])
    elif isinstance(source, LocalServer):
        for name, tensor in source.parameters():
            yield Item(name, source.label, tensor)
    elif isinstance(source, NamedTensor | Saveable):
        yield _named(where, source.name, source)
    else:
        raise TypeError(
            f"{where} expected modules, tensors by name, servers or saveables, got "
            f"{type(source).__name__}; give a tensor a name with NamedTensor"
        )


def _module_items(where: str, prefix: str, module: torch.nn.Module) -> Iterator[Item]:
    for name, tensor in module_tensors(where, prefix, module).items():
        yield Item(name, str(tensor.device), tensor)


def _named(where: str, name: Any, value: Any) -> Item:
    if not isinstance(name, str):
        raise TypeError(f"{where} expected names as str, got {name!r}")
    if isinstance(value, NamedTensor):
        return Item(name, value.device or str(value.tensor.device), value.tensor)
    if isinstance(value, torch.Tensor):
        return Item(name, str(value.device), value)
    if isinstance(value, Stateful):
        return Item(name, getattr(value, "device", "") or "cpu", value)
    raise TypeError(f"{where} expected a tensor or a saveable as {name!r}, got {value!r}")
