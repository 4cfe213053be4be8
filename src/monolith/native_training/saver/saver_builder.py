"""Groups of what a saver saves, by the device that owns it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from monolith.checkpoint.load import Checkpoint, copy_tensors, matched
from monolith.checkpoint.state_tree import flatten_state, unflatten_state
from monolith.errors import NotFoundError
from monolith.native_training.saver.saveables import Item, Stateful

_STATES = "saveables"  # in the trainer's document: states that are no tensors, by name


class Contents(NamedTuple):
    """What a save writes: tensors in one group per device, and states that are no tensors."""

    dense: list[dict[str, torch.Tensor]]
    states: dict[str, Any]


class SaverBuilder:
    """Knows what to gather from which device, and what to give back to it.

    Args:
        items: what is saved, by name.
        sharded: whether each device gets files of its own.
        reshape: whether a tensor takes a value of another shape and the same size.
    """

    def __init__(
        self, items: Sequence[Item], *, sharded: bool = False, reshape: bool = False
    ) -> None:
        self._items = list(items)
        self._sharded, self._reshape = sharded, reshape

    @property
    def items_per_device(self) -> dict[str, list[Item]]:
        """Items by the label of their device, sorted."""
        groups: dict[str, list[Item]] = {}
        for item in self._items:
            groups.setdefault(item.device, []).append(item)
        return dict(sorted(groups.items()))

    def description(self) -> dict[str, Any]:
        """Names, dtypes and shapes by device, as JSON."""
        return {
            device: {item.name: _shape(item) for item in items}
            for device, items in self.items_per_device.items()
        }

    def gather(self) -> Contents:
        """What is there now. Each device gives its own items only.

        Raises:
            ValueError: a tensor in the state of an object has the name of another one.
        """
        groups: list[dict[str, torch.Tensor]] = []
        states: dict[str, Any] = {}
        names: set[str] = set()
        for items in self.items_per_device.values():
            groups.append({})
            for item in items:
                found = _tensors_of(item, states)
                if twice := names & found.keys():
                    raise ValueError(
                        "[PartialRecoverySaver] expected each name once, got "
                        f"{min(twice)!r} twice; one of them is in the state of an object"
                    )
                names |= found.keys()
                groups[-1] |= found
        if not self._sharded:
            groups = [{name: tensor for group in groups for name, tensor in group.items()}]
        return Contents([group for group in groups if group], {_STATES: states} if states else {})

    def restore_ops_per_device(
        self,
        checkpoint: Checkpoint,
        is_wanted: Callable[[str], bool] = lambda device: True,
        *,
        num_threads: int | None = None,
    ) -> dict[str, Callable[[], None]]:
        """By device, what gives its items the values of a checkpoint; all values are checked.

        Args:
            checkpoint: where the values come from.
            is_wanted: whether a device is restored.
            num_threads: threads to read with, torch.get_num_threads() if None.

        Raises:
            NotFoundError: an item is not in the checkpoint.
            InvalidArgumentError: a shape or dtype differs.
        """
        groups = {
            device: items for device, items in self.items_per_device.items() if is_wanted(device)
        }
        states = (checkpoint.read_trainer() or {}).get(_STATES, {})
        names = {
            name
            for items in groups.values()
            for item in items
            for name in _tensor_names(checkpoint, item, states)
        }
        values = checkpoint.read_dense(names, num_threads=num_threads)
        return {
            device: self._action(checkpoint.prefix, items, values, states)
            for device, items in groups.items()
        }

    def _action(
        self,
        prefix: str,
        items: list[Item],
        values: Mapping[str, torch.Tensor],
        states: Mapping[str, Any],
    ) -> Callable[[], None]:
        targets = {item.name: item.value for item in items if isinstance(item.value, torch.Tensor)}
        pairs = matched(
            "[PartialRecoverySaver.restore]", prefix, targets, values, reshape=self._reshape
        )
        saveables = [item for item in items if not isinstance(item.value, torch.Tensor)]

        def restore() -> None:
            copy_tensors(pairs)
            for name, _, saveable in saveables:
                assert isinstance(saveable, Stateful)
                saveable.load_state_dict(unflatten_state(states[name], values))

        return restore


def _tensors_of(item: Item, states: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of an item by name; the rest of its state goes into `states`."""
    if isinstance(item.value, torch.Tensor):
        return {item.name: item.value.detach()}
    states[item.name], tensors = flatten_state(item.value.state_dict(), item.name)
    return tensors


def _tensor_names(checkpoint: Checkpoint, item: Item, states: Mapping[str, Any]) -> list[str]:
    """Names of the tensors that an item needs."""
    is_tensor = isinstance(item.value, torch.Tensor)
    if item.name not in (checkpoint.tensors if is_tensor else states):
        raise NotFoundError(
            f"[PartialRecoverySaver.restore] expected {item.name!r} of the model in "
            f"{checkpoint.prefix}, got a checkpoint without it; the model has changed since it was "
            "saved, or it is of another model"
        )
    if is_tensor:
        return [item.name]
    return [name for name in checkpoint.tensors if name.startswith(f"{item.name}/")]


def _shape(item: Item) -> Any:
    if not isinstance(item.value, torch.Tensor):
        return None
    return {"dtype": str(item.value.dtype), "shape": list(item.value.shape)}
